"""Recorded training jobs, replayed as Programs of their ops: what a straggler, a link or a stage costs."""

from simpar.recording.answer import Straggling as Straggling
from simpar.recording.answer import straggling as straggling
from simpar.recording.job import RecordedJob as RecordedJob
from simpar.recording.job import RecordedOp as RecordedOp
from simpar.recording.read import read_job as read_job
from simpar.recording.scale import chosen_ops as chosen_ops

__all__ = ['RecordedJob', 'RecordedOp', 'Straggling', 'chosen_ops', 'read_job', 'straggling']
