"""Own seconds of recorded ops, without waiting for peers; and what they would be if all were alike."""

from __future__ import annotations

import numpy as np

from simpar.recording.job import Array, RecordedJob


def own_seconds(job: RecordedJob) -> Array:
    """Shape [steps, ops]: compute lasts as recorded; communication from the last arrival of its peers to its end.

    A kernel of a collective runs from its own arrival, so that its recorded seconds hold the wait for its peers.
    """
    first = job.meetings
    # By op and step, so that the ufunc takes rows.
    arrived_NK = np.full(job.start_KN.T.shape, -np.inf)
    np.maximum.at(arrived_NK, first, job.start_KN.T)
    # Clocks of hosts differ: an op that seems to end before its peer arrived takes no time of its own.
    return np.asarray(np.maximum(job.end_KN - arrived_NK[first].T, 0.0))


def alike_seconds(job: RecordedJob, own_KN: Array) -> Array:
    """Shape [ops]: each op as long as its kind is usually, over all workers and steps.

    The mean of compute and the median of communication, as in "Understanding Stragglers in Large Model Training Using
    What-if Analysis" (Lin et al. 2025), whose ideal job this is.
    """
    alike = np.zeros(len(job.ops))
    for kind in {op.kind: op.of for op in job.ops}.values():
        of = [at for at, op in enumerate(job.ops) if op.kind == kind.name]
        usual = np.median if kind.communicates else np.mean
        alike[of] = usual(own_KN[:, of])
    return alike
