"""Ablation: which of the keys that a user wrote change nothing, found by leaving them out."""

from simpar.ablation.find import unchanged_baseline as unchanged_baseline
from simpar.ablation.find import unlike_stack as unlike_stack
from simpar.ablation.find import unused_of_cluster as unused_of_cluster
from simpar.ablation.find import without_effect as without_effect
