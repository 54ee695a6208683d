"""simpar predicts, trains and compares multi-copy, pipeline and optimizer parallelism."""

__version__ = '0.1.0'
