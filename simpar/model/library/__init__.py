"""Models of the library: graphs of operators from a few sizes."""
