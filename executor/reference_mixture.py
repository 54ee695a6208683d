"""The reference's mixture of experts: token by token, in plain torch, without slots and without ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch.nn import functional

from executor.reference_model import Declared, Parameters, Slices
from executor.sequence import in_sequence
from simpar.model.library.experts import Experts
from simpar.model.library.gpt import Transformer

Activation = Callable[[torch.Tensor], torch.Tensor]


def mixture_parameters(model: Transformer, experts: Experts, layer: str, weight: str) -> Iterator[Declared]:
    """Name, shape and draw of the parameters of a layer's mixture; ``weight``, the draw of weights."""
    hidden, width, gates = model.hidden, experts.ffn or model.ffn_width, (2,) if model.gated else ()
    yield f'{layer}.router.weight', (experts.count, hidden), weight
    if experts.correction_bias:
        yield f'{layer}.route.correction', (experts.count,), 'zeros'
    yield f'{layer}.experts.fc1.weight', (experts.count, width, *gates, hidden), weight
    yield f'{layer}.experts.fc2.weight', (experts.count, hidden, width), weight
    if experts.shared:
        yield f'{layer}.shared.fc1.weight', (experts.shared, *gates, hidden), weight
        yield f'{layer}.shared.fc2.weight', (hidden, experts.shared), weight
        if experts.shared_gate:
            yield f'{layer}.shared.gate.weight', (1, hidden), weight


def mixture(
    experts: Experts, activation: Activation, parameters: Parameters, layer: str, x: torch.Tensor, slices: Slices
) -> tuple[torch.Tensor, torch.Tensor]:
    """What a mixture makes of x [batch, sequence, hidden], and its auxiliary loss over all of x.

    Arguments: ``slices`` of a sequence that ranks hold, each with its share of an expert's slots.
    """

    def weight(name: str) -> torch.Tensor:
        return parameters[f'{layer}.{name}.weight']

    logits = x @ weight('router').T
    scores = logits.softmax(-1) if experts.score == 'softmax' else logits.sigmoid()
    chosen = _chosen(experts, scores + parameters.get(f'{layer}.route.correction', torch.zeros(())))
    picked = scores.gather(-1, chosen)
    if experts.normalise:
        picked = picked / picked.sum(-1, keepdim=True)
    picked = picked * experts.scaling_factor
    y = torch.zeros_like(x)
    for expert in range(experts.count):
        goes = (chosen == expert).any(-1)
        if experts.capacity:
            goes = _first(goes, experts.slots(x.shape[1]), slices)
        share = (picked * (chosen == expert)).sum(-1)[goes]
        inside = functional.linear(x[goes], weight('experts.fc1')[expert].reshape(-1, x.shape[-1]))
        rows = activation(inside) @ weight('experts.fc2')[expert].T
        y = y.index_put((goes,), rows * share[:, None], accumulate=True)
    if experts.shared:
        inside = functional.linear(x, weight('shared.fc1').reshape(-1, x.shape[-1]))
        beside = activation(inside) @ weight('shared.fc2').T
        y = y + (beside * (x @ weight('shared.gate').T).sigmoid() if experts.shared_gate else beside)
    return y, _aux_loss(experts, scores, chosen)


def _first(goes: torch.Tensor, slots: int, slices: Slices) -> torch.Tensor:
    """The first tokens of each sequence that have a slot; of each slice, where slots can be dealt out to slices."""
    sequence, count = goes.shape[1], slices.parts
    if sequence % count or slots % count:
        count = 1
    # Balanced context ranks have a chunk from the front and one from the back, in this order.
    order = in_sequence(torch.arange(sequence), sequence, slices.balanced)
    each = goes[:, order].unflatten(1, (count, -1))
    kept = (each & (each.cumsum(2) <= slots // count)).flatten(1)
    return kept[:, order.argsort()]


def _chosen(experts: Experts, scores: torch.Tensor) -> torch.Tensor:
    """The numbers of each token's experts."""
    if experts.groups > 1:
        of_group = scores.unflatten(-1, (experts.groups, -1)).sort(-1, descending=True).values
        best = of_group[..., : experts.group_scores].sum(-1).topk(experts.group_top_k).indices
        size = experts.count // experts.groups
        allowed = (torch.arange(experts.count) // size == best.unsqueeze(-1)).any(-2)
        scores = scores.masked_fill(~allowed, float('-inf'))
    return scores.topk(experts.top_k).indices


def _aux_loss(experts: Experts, scores: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    scores = scores / scores.sum(-1, keepdim=True)
    share = functional.one_hot(chosen, experts.count).to(scores.dtype).mean(-2)
    # The slice that it is given has all tokens that are balanced together.
    if experts.aux_group == 'sample':
        each = (share.mean(1) * scores.mean(1)).sum(-1).mean()
    else:
        each = (share.mean((0, 1)) * scores.mean((0, 1))).sum()
    return experts.aux_loss * experts.count * each
