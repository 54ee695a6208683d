"""A plan that trains: its program is valid, and computes what the unsharded model computes."""

from simpar.lower import lower


def trains(workload, plan, ranks, **more):
    """Hold its program, and what that trains in one process, against the unsharded model; returns the program."""
    # Tests of the same file need no torch.
    from executor.numerics import check
    from executor.validate import validate

    program = lower(workload, plan, ranks)
    validate(program)
    check(program, workload, plan, **more)
    return program
