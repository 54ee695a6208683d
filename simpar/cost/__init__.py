"""Costs of a program's op classes on a cluster."""
