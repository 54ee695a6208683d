"""Planner: the best plan for a model on devices, with a proven bound."""

from simpar.planner.answer import Answer, Pruned, Ranked
from simpar.planner.plan import Planning, load_planning
