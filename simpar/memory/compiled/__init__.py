"""What memory asks of large roles, compiled by numba; imported only where a kernel must be compiled."""
