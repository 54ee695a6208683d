"""Accelerators: streams and events of a device in place of threads, one host thread that issues, native collectives."""
