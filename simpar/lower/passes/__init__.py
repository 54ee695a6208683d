"""Passes: what is done with the ops of a tape, whatever graph they came from."""
