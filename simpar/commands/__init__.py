"""The verbs of the command line, a file a family; a verb's function is ``VERB_command(options) -> exit code``."""
