"""Compiled: walks over the tasks of an order, by numba."""
