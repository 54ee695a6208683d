"""The flags of the command line: one function for each verb."""
