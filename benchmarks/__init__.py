"""Benchmarks: `python -m benchmarks` times simpar beside a C++ reference, and writes docs/proofs/performance.md."""
