"""Ablation: which of the keys that a user wrote change nothing, found by leaving them out."""

from simpar.ablation.find import unchanged_baseline, unlike_stack, unused_of_cluster, without_effect
