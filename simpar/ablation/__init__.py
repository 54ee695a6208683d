"""Ablation: which of the keys that a user wrote change nothing, found by leaving them out."""

from simpar.ablation.baseline import unchanged_baseline as unchanged_baseline
from simpar.ablation.find import without_effect as without_effect
from simpar.ablation.links import unused_links as unused_links
from simpar.ablation.mode import unused_mode as unused_mode
from simpar.ablation.queues import unused_queues as unused_queues
from simpar.ablation.spread import unused_spread as unused_spread
from simpar.ablation.stack import unlike_stack as unlike_stack

__all__ = [
    'unchanged_baseline',
    'unlike_stack',
    'unused_links',
    'unused_mode',
    'unused_queues',
    'unused_spread',
    'without_effect',
]
