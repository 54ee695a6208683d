"""Executor: the same Program for real, on torch tensors; the only package that imports torch."""
