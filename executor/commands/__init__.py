"""What the verbs of ``python -m executor`` do, one file a verb."""
