"""Megatron-LM's flags of a mixture: its experts, their balance, and the ranks that share them.

Names and defaults as in ``megatron``.
"""

import re
from collections.abc import Iterator
from math import lcm
from typing import Final, NamedTuple

from simpar.importing.findings import Entry, Finding, Guess, Mistake, Unmapped
from simpar.importing.settings import NODE_SIZE, Settings

_T: Final = 'workload.transformer'


SWEEPS: Final = 4
"""Sweeps of megatron/core/transformer/moe/moe_utils.py, sinkhorn, for drawn logits of 4 to 64 experts that deviate by
0.45, and their means by half as much: as a router of width 512 begins with weights of 0.02."""


def number_of_experts(flags: Settings) -> int:
    """Experts of a layer; 0 where there are none, or one for all tokens."""
    count = flags.number('num-experts')
    return count if count > 1 else 0


def experts(flags: Settings) -> Iterator[Finding]:
    """A mixture of experts; its flags count with num-experts alone."""
    if not number_of_experts(flags):
        yield from flags.left('without num-experts', *(name for name in flags.named if name.startswith('moe-')))
        return
    yield from flags.said('num-experts')
    yield from flags.said('moe-router-topk', silent=True)
    yield from flags.said(
        'moe-ffn-hidden-size', 'moe-shared-expert-intermediate-size', 'moe-router-num-groups',
        'moe-router-group-topk', 'moe-router-topk-scaling-factor', 'moe-expert-capacity-factor',
        'moe-shared-expert-gate', 'moe-router-enable-expert-bias', 'moe-router-score-function',
    )  # fmt: skip
    # NVIDIA/Megatron-LM megatron/core/transformer/moe/moe_utils.py: scores of a sigmoid are always normalised.
    is_sum = flags.choice('moe-router-score-function') == 'sigmoid'
    yield from flags.said_where(not is_sum, 'scores of a sigmoid are normalised anyway', 'moe-router-pre-softmax')
    yield from balance(flags)
    yield from expert_layers(flags)


def balance(flags: Settings) -> Iterator[Finding]:
    """The auxiliary loss."""
    name = 'moe-router-load-balancing-type'
    kind, by, loss = flags.text(name), flags.given(name), flags.choice(name)
    if loss in ('rank', 'sample', 'global'):
        yield from flags.said('moe-aux-loss-coeff', silent=True)
        if loss != 'rank':
            yield Entry(f'{_T}.experts.aux_group', loss, by)
        return
    yield from flags.left(f'with load balancing {kind}', 'moe-aux-loss-coeff')
    if loss == 'sinkhorn':
        # NVIDIA/Megatron-LM d98e8a64dd, megatron/core/transformer/moe/router.py, line 280: weights are not normalised.
        yield Entry(f'{_T}.experts.sweeps', SWEEPS, by, 'until its scales change by less than 1e-4')
        yield Entry(f'{_T}.experts.normalise', False, by)
        yield Entry(f'{_T}.experts.score', 'sigmoid' if flags.number('moe-router-topk') == 1 else 'softmax', by)
        yield Guess(f'Sinkhorn balances in {SWEEPS} sweeps, as where logits deviate by a half; 6 to 7 where by 1.3')
    elif loss == 'none':
        yield from flags.left('tokens go to their best experts, without an auxiliary loss', name)
    elif by:
        yield Unmapped(name, f'{kind}; experts are written without an auxiliary loss')


def expert_layers(flags: Settings) -> Iterator[Finding]:
    """Which layers have experts: every so-manieth, or those of a list."""
    listed = pattern_of(flags.text('moe-layer-freq'))
    if listed is None:
        if flags.number('moe-layer-freq') > 1:
            yield Entry(f'{_T}.experts.every', flags.number('moe-layer-freq'), ('moe-layer-freq',))
        return
    dense = listed.index(1) if 1 in listed else len(listed)
    if all(listed[dense:]):
        yield Entry(f'{_T}.experts.first_dense', dense, ('moe-layer-freq',))
    else:
        yield Unmapped('moe-layer-freq', 'dense layers among those with experts')


def has_dense(flags: Settings) -> bool:
    """Whether some layer has no experts."""
    if not number_of_experts(flags) or flags.number('first-k-dense-replace') > 0:
        return True
    listed = pattern_of(flags.text('moe-layer-freq'))
    return 0 in listed if listed is not None else flags.number('moe-layer-freq') > 1


def pattern_of(text: str) -> list[int] | None:
    """``([0]*3+[1]*58)`` and ``[1, 0, 1]`` as a list; None where a text is not one."""
    bare = text.strip().strip('"\'').replace(' ', '')
    bare = bare[1:-1] if bare.startswith('(') and bare.endswith(')') else bare
    layers: list[int] = []
    for part in bare.split('+') if bare.startswith('[') else ['']:
        match = re.fullmatch(r'\[([01](?:,[01])*)\](?:\*(\d{1,4}))?', part)
        if match is None:
            return None
        layers += [int(one) for one in match[1].split(',')] * int(match[2] or 1)
    return layers


# the ranks


class Ranks(NamedTuple):
    """How many ranks a run has, how many devices of a node it takes (0: all), and what a reader should know of it."""

    total: int
    node: int
    notes: tuple[Finding, ...] = ()


def dense_ranks(flags: Settings) -> int:
    """Tensor × context ranks."""
    return flags.number('tensor-model-parallel-size') * flags.number('context-parallel-size')


def ranks_of(flags: Settings) -> Ranks:
    """Ranks of the run, as launchers say them; where these are not known, those that the degrees need, and an error."""
    tensor = 1 if _extends(flags) else flags.number(_EXPERT_TENSOR) or flags.number('tensor-model-parallel-size')
    of_experts = tensor * _degree(flags) if number_of_experts(flags) else 1
    inner = max(1, flags.number('pipeline-model-parallel-size'))
    inner *= lcm(max(1, of_experts), max(1, dense_ranks(flags)))
    node, total = _count(flags, 'nproc-per-node'), _count(flags, 'worker-num')
    # torchrun has one node where it is known no number of them.
    nodes = _count(flags, 'nnodes') if 'nnodes' in flags else min(1, node)
    full = max(1, flags.number(NODE_SIZE))
    notes: tuple[Finding, ...] = ()
    if nodes and not node and not total:
        node = full
        what = f'{full} devices of each node, all that it has: --set nproc-per-node=N says another number'
        notes = (Guess(what, of_cluster=True),)
    rank_count = total or nodes * node
    if not rank_count:
        return Ranks(inner, 0, (_unknown_ranks(flags, nodes, node),))
    if rank_count % inner:
        ranks = inner if inner < full else lcm(inner, full)
        what = f'{ranks} devices: the file has {rank_count}, which do not divide into the {inner} of its degrees'
        return Ranks(ranks, 0, (Guess(what, of_cluster=True),))
    return Ranks(rank_count, node, notes)


def _count(flags: Settings, name: str) -> int:
    """A number of nodes or devices; 0 where it is not known."""
    return max(0, flags.number(name))


def _unknown_ranks(flags: Settings, nodes: int, node: int) -> Mistake:
    """What to write where nobody says how many devices there are."""
    missing = [name for name, count in (('nnodes', nodes), ('nproc-per-node', node)) if not count]
    open_names = [flags.named[name].open for name in missing if name in flags]
    variables = [one for names in open_names for one in names if not one.startswith('$')]
    example = ' '.join(f'--set {name}=8' for name in dict.fromkeys(variables or missing))
    said = next((name for name in missing if name in flags), '')
    what = f'{flags.named[said].shown} is not known' if said else 'the file does not say how many devices it runs on'
    return Mistake(said or 'nnodes', what, f'give the number, e.g. {example}')


def expert(flags: Settings) -> Iterator[Finding]:
    """Expert parallelism, of a model that has experts."""
    degree, kind, tensor = _degree(flags), flags.choice(_DISPATCHER), flags.number('tensor-model-parallel-size')
    if kind == 'by sequence':
        # Ascend/MindSpeed 028de58ca6, mindspeed/core/transformer/moe/legacy_a2a_token_dispatcher.py, line 335: tensor
        # ranks that hold no experts of their own exchange tokens for features.
        kind, exchanges = 'alltoall', tensor > 1 and not _extends(flags) and number_of_experts(flags) > 0
        if exchanges and flags.on('sequence-parallel'):
            yield Entry('plan.expert_tokens', 'features', (_DISPATCHER,))
        elif exchanges:
            kind = flags.text(_DISPATCHER)
    names = ('expert-model-parallel-size', _DISPATCHER, _EXPERT_TENSOR, _EXTENDS)
    if degree < 2 or not number_of_experts(flags):
        yield from flags.left('one expert rank', *names, *_HIDES)
        return
    yield from _expert_ranks(flags, degree)
    yield Entry('plan.expert', degree, flags.given(*names[: 2 if kind in ('alltoall', 'flex') else 1], _EXTENDS))
    if kind not in ('alltoall', 'flex') and _DISPATCHER in flags:
        yield Unmapped(_DISPATCHER, f'{kind or flags.text(_DISPATCHER)}; experts exchange tokens by all-to-all')
    elif kind not in ('alltoall', 'flex'):
        # NVIDIA/Megatron-LM d98e8a64dd, megatron/core/transformer/transformer_config.py, line 891.
        what = flags.text(_DISPATCHER)
        yield Guess(f'tokens go to experts by all-to-all; {what} is taken where no {_DISPATCHER} is said')
    yield from _hidden(flags)


def _degree(flags: Settings) -> int:
    """Ranks that share experts; in MindSpeed these of tensor ranks may, too."""
    within = flags.number('tensor-model-parallel-size') if _extends(flags) else 1
    return flags.number('expert-model-parallel-size') * max(1, within)


def _extends(flags: Settings) -> bool:
    return _EXTENDS in flags.table.rows and flags.on(_EXTENDS)


def _expert_ranks(flags: Settings, degree: int) -> Iterator[Finding]:
    """Which ranks share experts: those that split the rest of the model by tensor, or others.

    NVIDIA/Megatron-LM d98e8a64dd, megatron/core/parallel_state.py, line 776 on: the ranks of experts count on behind
    tensor ranks of their own, with no context ranks among them.
    """
    tensor, context = flags.number('tensor-model-parallel-size'), flags.number('context-parallel-size')
    of_experts = 1 if _extends(flags) else flags.number(_EXPERT_TENSOR) or tensor
    if of_experts not in (1, tensor):
        what = f'not modelled: tensor parallelism of experts ({of_experts}) apart from the rest ({tensor})'
        yield Mistake(_EXPERT_TENSOR, what, f'--set {_EXPERT_TENSOR}={tensor} splits experts as the rest')
    elif of_experts < tensor and not flags.on('sequence-parallel'):
        # The same, megatron/training/arguments.py: experts beside tensor ranks need it.
        what = 'off, so that tensor ranks have the same tokens, and none its own for experts that it holds alone'
        yield Mistake('sequence-parallel', what, '--set sequence-parallel=true')
    elif of_experts < tensor:
        yield Entry('plan.expert_ranks', 'tensor', flags.given(_EXPERT_TENSOR, _EXTENDS), 'experts are whole')
    elif context > 1:
        yield Entry('plan.expert_ranks', 'context', flags.given('expert-model-parallel-size'))


def _hidden(flags: Settings) -> Iterator[Finding]:
    """What computes under the all-to-alls of experts."""
    on = tuple(name for name in _HIDES if name in flags.table.rows and flags.on(name))
    if not (flags.number('moe-shared-expert-intermediate-size') or flags.number('n-shared-experts')):
        # Ascend/MindSpeed 028de58ca6, mindspeed/core/transformer/moe/moe_feature/overlap: what is left under an
        # all-to-all is the gradient of weights beside it, as each stream has it here.
        yield from flags.left('no experts are shared; gradients of weights are under all-to-alls anyway', *_HIDES)
    elif on:
        yield Entry('plan.shared_experts', 'overlapped', on)


_DISPATCHER: Final = 'moe-token-dispatcher-type'
_EXPERT_TENSOR: Final = 'expert-tensor-parallel-size'
_EXTENDS: Final = 'moe-tp-extend-ep'
_HIDES: Final = ('moe-shared-expert-overlap', 'moe-alltoall-overlap-comm')
