"""Operators of the models of the library."""
