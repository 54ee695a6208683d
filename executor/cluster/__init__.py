"""Ranks that somebody else has started, on any number of hosts: who they are, where they meet, what they lack."""
