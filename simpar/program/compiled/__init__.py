"""What a program is built with, compiled by numba; imported only where a kernel must be compiled."""
