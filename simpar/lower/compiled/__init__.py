"""What growing a program takes, compiled by numba; imported only where a kernel must be compiled."""
