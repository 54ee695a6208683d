"""Micro-benchmarks of this machine with the executor's own kernels, collectives, streams and ranks."""
