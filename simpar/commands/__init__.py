"""One file for each verb of the command line; each has ``command(options) -> exit code``."""
