"""Figures of a trace: seconds of computing, communication and bubble; the pipeline's actions and when they ran."""

from simpar.metrics.actions import ActionSpan as ActionSpan
from simpar.metrics.actions import Work as Work
from simpar.metrics.actions import action_spans as action_spans
from simpar.metrics.actions import actions_of as actions_of
from simpar.metrics.actions import by_stages as by_stages
from simpar.metrics.actions import is_pipeline as is_pipeline
from simpar.metrics.actions import stages_of as stages_of
from simpar.metrics.meetings import Meetings as Meetings
from simpar.metrics.seconds import RankSeconds as RankSeconds
from simpar.metrics.seconds import StepSeconds as StepSeconds
from simpar.metrics.step import RECEIVES as RECEIVES
from simpar.metrics.step import SENDS as SENDS
from simpar.metrics.step import Metrics as Metrics
from simpar.metrics.step import RankMetrics as RankMetrics
from simpar.metrics.step import StepMetrics as StepMetrics
from simpar.metrics.step import StreamMetrics as StreamMetrics
from simpar.metrics.step import communicator as communicator
from simpar.metrics.step import is_communication as is_communication
from simpar.metrics.step import metrics as metrics
from simpar.metrics.step import named_streams as named_streams
from simpar.program.op import transfers as is_transfer

__all__ = [
    'RECEIVES',
    'SENDS',
    'ActionSpan',
    'Meetings',
    'Metrics',
    'RankMetrics',
    'RankSeconds',
    'StepMetrics',
    'StepSeconds',
    'StreamMetrics',
    'Work',
    'action_spans',
    'actions_of',
    'by_stages',
    'communicator',
    'is_communication',
    'is_pipeline',
    'is_transfer',
    'metrics',
    'named_streams',
    'stages_of',
]
