"""The null model: one constant utilisation for each device, and the textbook's bubble; what a model has to beat."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from simpar.validate.rows import Row


def work(row: Row) -> float:
    """A number in proportion to the seconds of a step at constant utilisation.

    FLOPs of products and of attention over all layers and the head, once more forward where layers are recomputed, for
    each device, and (pipeline − 1) / (chunks × micro-batches) more for the bubble.
    """
    batch, sequence, layers, hidden = (row.whole(key) for key in ('global_batch', 'seq', 'n_layers', 'hidden'))
    ffn = float(row.whole('ffn', 4 * hidden) * (3 if 'glu' in row.text('mlp') else 2))
    if row.whole('n_experts') > 1:
        # Of experts those count that a token goes to.
        ffn = ffn * row.whole('topk', 1) * row.whole('moe_ffn', row.whole('ffn', 1)) / max(1, row.whole('ffn', 1))
    heads = row.whole('heads', 1)
    groups = row.whole('kv_heads', heads) / heads
    weights = layers * hidden * (hidden * (2 + 2 * groups) + ffn) + hidden * row.whole('vocab', 50257)
    flops = 2.0 * batch * sequence * (weights + layers * hidden * sequence)
    passes = 4 if row.text('recompute').startswith('full') else 3
    pipeline, data = row.whole('pp', 1), max(1, row.whole('dp', 1))
    micro_batches = max(1.0, batch / data / max(1, row.whole('micro_batch', 1)))
    bubble = (pipeline - 1) / (max(1, row.whole('vpp_chunks', 1)) * micro_batches)
    return flops * passes / max(1, row.whole('n_gpus')) * (1 + bubble)


def fitted(rows: Sequence[Row]) -> dict[str, float]:
    """For each hardware the seconds of a unit of work, the median over rows; '' for all of them together."""
    by: dict[str, list[float]] = {'': []}
    for row in rows:
        for key in ('', row.text('hardware')):
            by.setdefault(key, []).append(row.seconds / work(row))
    return {key: median(found) for key, found in by.items() if found}


def predicted(row: Row, rates: dict[str, float]) -> float:
    """Seconds of a step; 0 where nothing was fitted."""
    return work(row) * rates.get(row.text('hardware'), rates.get('', 0.0))
