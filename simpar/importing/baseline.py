"""Baseline: the question that a first answer should answer of a plan, as ``against`` of its schedule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

PASSES: Final = ('matmul_grad_comm_overlap', 'enable_grad_comm_opt', 'enable_opt_shard_comm_opt')
"""MindSpore's passes that put communication under computation, without the one that costs memory."""


class Question(NamedTuple):
    """What differs in the baseline, by dotted key, and what the gain over it says, in words."""

    against: Mapping[str, Any]
    comment: str


NONE: Final = Question({}, 'no baseline is known to fit this plan: write what to compare with, e.g. {plan.copies: 2}')


def questions(values: Mapping[str, Any], ranks: int) -> Iterator[Question]:
    """Baselines for a plan, the most telling first: without one kind of overlap that it has, else with copies.

    Arguments: ``values`` of the schedule by dotted key; ``ranks`` in all.
    """
    inner = values.get('plan.pipeline', 1) * values.get('plan.tensor', 1) * values.get('plan.context', 1)
    data = values.get('plan.data') or max(1, ranks // max(1, inner))
    if values.get('plan.copies', 1) > 1:
        yield Question({'plan.copies': 1}, 'what the copies gain, over the whole batch at once')
    if values.get('plan.chunks', 1) > 1 and values.get('plan.order') == 'interleaved-1f1b':
        yield Question({'plan.order': '1f1b', 'plan.chunks': 1}, 'what interleaved stages gain, over plain 1F1B')
    if values.get('plan.tiles', 1) > 1:
        yield Question({'plan.tiles': 1}, 'what products and messages in tiles gain')
    passes = values.get('plan.overlap')
    if passes:
        yield Question({'plan.overlap': []}, 'what the overlap passes gain')
    if data > 1 and values.get('plan.zero', 0) == 3 and values.get('plan.prefetch', 1):
        yield Question({'plan.prefetch': 0}, 'what gathers ahead of their use gain')
    if data > 1 and values.get('plan.reduce_gradients') == 'overlapped':
        yield Question({'plan.reduce_gradients': 'end'}, 'what sums of gradients under the backward gain')
    yield from _what_if(values, data)


def _what_if(values: Mapping[str, Any], data: int) -> Iterator[Question]:
    """Plans to weigh this one against, which overlaps nothing: two copies, interleaved stages, overlapped sums."""
    micro = values.get('plan.micro_batches', 1)
    comment = 'would two copies be faster? The plan is compared with them'
    if any(values.get(key, 1) > 1 for key in ('plan.tensor', 'plan.context', 'plan.expert')):
        yield Question({'plan.copies': 2}, comment)
        if micro % 2 == 0:
            yield Question({'plan.copies': 2, 'plan.micro_batches': micro // 2}, comment)
    if values.get('plan.overlap') == []:
        comment = "would MindSpore's overlap passes be faster? The plan is compared with them"
        yield Question({'plan.overlap': list(PASSES)}, comment)
    stages, layers = values.get('plan.pipeline', 1), values.get('workload.transformer.layers', 0)
    if stages > 1 and micro % stages == 0 and layers and layers % (2 * stages) == 0:
        comment = 'would interleaved stages be faster? The plan is compared with them'
        yield Question({'plan.order': 'interleaved-1f1b', 'plan.chunks': 2}, comment)
    if data > 1:
        comment = 'would sums of gradients under the backward be faster? The plan is compared with them'
        yield Question({'plan.reduce_gradients': 'overlapped'}, comment)
