"""Compiled machines: `replay` and the event loop by numba, over the arrays of a graph, to the bit those in Python."""
