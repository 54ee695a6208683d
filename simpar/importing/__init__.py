"""Importing: the files that other launchers read, as a schedule; every setting is mapped or listed with its reason."""
