"""A plan that trains: its program is valid, and computes what the unsharded model computes."""

from every import EVERY
from tables import load_table

from simpar.lower import lower
from simpar.plans import Plan

ONCE = 2 if EVERY == 1 else 1
"""Steps where the model or its layout is in question: what a second step brings, tests of optimizers train."""


def trains(workload, plan, ranks, **more):
    """Hold its program, and what that trains in one process, against the unsharded model; returns the program."""
    # Tests of the same file need no torch.
    from executor.numerics import check
    from executor.validate import validate

    program = lower(workload, plan, ranks)
    validate(program)
    check(program, workload, plan, **more)
    return program


def plans(file, name):
    """Plans of a module's table by name, each with its number of ranks."""
    return {key: (Plan(**keys), ranks) for key, (ranks, keys) in load_table(file, name).items()}
