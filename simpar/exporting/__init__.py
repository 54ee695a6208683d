"""Exporting: the plan of a schedule in a framework's own words."""
