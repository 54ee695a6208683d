"""Compiled recurrences of pipeline orders by numba, to the bit those in numpy."""
