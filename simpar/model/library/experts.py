"""The mixture of experts of a ``transformer:``: its keys, its operators in order, and what of it does not fit."""

from collections.abc import Callable, Iterator

from simpar.errors import Problem, divisors
from simpar.model import model
from simpar.model.operators import base, linear, pointwise
from simpar.model.operators import experts as mixture
from simpar.model.operators.experts import Experts

MakeNode = Callable[..., model.Node]
"""Makes a node of a layer: name, operator, what it reads."""


def mixture_nodes(
    experts: Experts, node: MakeNode, layer: int, x: str, *, hidden: int, ffn: int, sequence: int, gated: bool,
    activation: type[base.Operator],
) -> Iterator[model.Node]:  # fmt: skip
    """The operators of a mixture; the last is named ``mixture``.

    Arguments: ``node`` makes one of a layer; ``x``, what they read; ``ffn``, width of an expert unless it says so.
    """
    width, kind = experts.ffn or ffn, activation.key
    parts = 2 if gated else 1
    map_of = f'layer{layer}.route.{mixture.MAP}'
    yield node('router', linear.Product(outputs=(experts.count,), inputs=(hidden,), bias=False, split='inputs'), x)
    logits = '.router'
    for sweep in range(experts.sweeps):
        yield node(f'sinkhorn{sweep}', mixture.Sinkhorn(), logits)
        logits = f'.sinkhorn{sweep}'
    yield node('route', mixture.Route(experts=experts), logits)
    weights = '.route'
    if experts.aux_loss:
        yield node(
            'balance',
            mixture.Balance(experts=experts, map_of=map_of, together=experts.aux_group == 'global'),
            '.router',
        )
        aux = mixture.AuxLoss(experts=experts, coefficient=experts.aux_loss, group=experts.aux_group)
        yield node('aux_loss', aux, weights, '.router', '.balance')
        weights = '.aux_loss'
    dispatch = mixture.Dispatch(
        experts=experts.count, slots=experts.slots(sequence), filled=experts.load(sequence), map_of=map_of
    )
    yield node('dispatch', dispatch, x, weights)
    fc1 = mixture.GroupedProduct(experts=experts.count, outputs=(width, 2)[:parts], inputs=hidden)
    yield node('experts.fc1', fc1, '.dispatch')
    yield node(f'experts.{kind}', activation(), '.experts.fc1')
    fc2 = mixture.GroupedProduct(experts=experts.count, outputs=(hidden,), inputs=width, split='inputs')
    yield node('experts.fc2', fc2, f'.experts.{kind}')
    if not experts.shared:
        yield node('mixture', mixture.Combine(map_of=map_of), weights, '.experts.fc2')
        return
    yield node('combine', mixture.Combine(map_of=map_of), weights, '.experts.fc2')
    shared = linear.Product(outputs=(experts.shared, 2)[:parts], inputs=(hidden,), bias=False,
                     what='the shared experts (their width)')  # fmt: skip
    yield node('shared.fc1', shared, x)
    yield node(f'shared.{kind}', activation(), '.shared.fc1')
    last = linear.Product(outputs=(hidden,), inputs=(experts.shared,), bias=False, split='inputs')
    yield node('shared.fc2', last, f'.shared.{kind}')
    beside = '.shared.fc2'
    if experts.shared_gate:
        yield node('shared.gate', linear.Product(outputs=(1,), inputs=(hidden,), bias=False, split='inputs'), x)
        yield node('shared.gated', mixture.SigmoidGate(), beside, '.shared.gate')
        beside = '.shared.gated'
    yield node('mixture', pointwise.Add(of=('', '')), '.combine', beside)


def mixture_problems(experts: Experts, at: tuple[str, ...], layers: int) -> Iterator[Problem]:
    """What of a mixture's keys does not fit together.

    Arguments: ``at``, where a file has it.
    """
    count, top_k = experts.count, experts.top_k
    if not any(map(experts.in_layer, range(layers))):
        yield Problem((*at, 'first_dense'), f'none of {layers} layers has experts', 'write a smaller one, or every: 1')
    if count % experts.groups:
        what = f'{experts.groups} groups do not divide {count} experts'
        yield Problem((*at, 'groups'), what, f'write one of {divisors(count, experts.groups)}')
    elif experts.group_top_k > experts.groups:
        what = f'{experts.group_top_k} of {experts.groups} groups'
        yield Problem((*at, 'group_top_k'), what, f'write at most {experts.groups}')
    elif experts.groups > 1 and count // experts.groups * experts.group_top_k < top_k:
        has = count // experts.groups * experts.group_top_k
        yield Problem((*at, 'group_top_k'), f'{has} experts in these groups, but top_k {top_k}', 'write a larger one')
    elif experts.groups > 1 and experts.group_scores > count // experts.groups:
        what = f'{experts.group_scores} scores, but {count // experts.groups} experts in a group'
        yield Problem((*at, 'group_scores'), what, f'write at most {count // experts.groups}')
    if top_k <= count and experts.imbalance > count / top_k:
        what = f'{experts.imbalance:g} times the mean is more than all tokens'
        yield Problem((*at, 'imbalance'), what, f'write at most {count / top_k:g}')
