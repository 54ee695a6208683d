"""Recorded training jobs, replayed as Programs of their ops: what a straggler, a link or a stage costs."""

from simpar.recording.job import RecordedJob, RecordedOp, read_job
from simpar.recording.replay import Straggling, chosen_ops, straggling
