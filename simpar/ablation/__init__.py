"""Ablation: which of the keys that a user wrote change nothing, found by leaving them out."""

from simpar.ablation.find import unchanged_baseline as unchanged_baseline
from simpar.ablation.find import unlike_stack as unlike_stack
from simpar.ablation.find import unused_links as unused_links
from simpar.ablation.find import unused_mode as unused_mode
from simpar.ablation.find import unused_queues as unused_queues
from simpar.ablation.find import unused_spread as unused_spread
from simpar.ablation.find import without_effect as without_effect
