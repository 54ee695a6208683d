"""Models that are made of operators."""
