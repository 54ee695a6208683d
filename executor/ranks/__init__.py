"""Ranks: what each runs, on what machine, over which messages, and the pool that starts and watches them."""
