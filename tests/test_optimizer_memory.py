"""Weights, gradients, states and gathered weights of a GPT under optimizer parallelism, over time, by closed forms.

P elements of parameters on a tensor rank, cut over N data ranks: P·b/N bytes of weights where they are cut, P·g/N of
gradients where they are reduced, k·P·s/N of states (Rajbhandari et al. 2020, "ZeRO", section 3; MindSpore's tutorial on
optimizer parallelism counts the same). Here they are counted parameter by parameter from the shapes of a GPT, so that
what does not divide, or is too small, counts whole. Memory is taken op after op, as an allocator sees it.
"""

from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import pytest
from every import some

from simpar.lower import lower
from simpar.memory import memory, sequential
from simpar.plans import Plan
from simpar.workload import Adam, Momentum, Sgd, Transformer, Workload

H, A, V, L = 48, 4, 96, 4
"""Hidden width, heads, vocabulary, layers."""
MASTER = Adam(master_weights=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Arguments: ``n``, ranks that share a set of pieces; ``states`` of a weight; ``small``, bytes below which a
    parameter stays whole."""

    plan: Plan
    n: int
    weights: bool = False
    states: int = 2
    small: int = 0
    sequence: int = 32
    optimizer: Any = field(default_factory=Adam)
    gradients: str | None = None

    @property
    def g(self) -> int:
        return 4 if self.gradients == 'fp32' else 2


CASES = {
    'off': Case(plan=Plan(data=4), n=1),
    'zero 1': Case(plan=Plan(data=4, zero=1), n=4),
    'zero 2': Case(plan=Plan(data=4, zero=2), n=4),
    'zero 3': Case(plan=Plan(data=4, zero=3), n=4, weights=True),
    'level 1': Case(plan=Plan(data=4, hsdp='level1', shard_threshold=0.0), n=4, weights=True),
    'level 2': Case(plan=Plan(data=4, hsdp='level2', shard_threshold=0.0), n=4, weights=True),
    'level 3': Case(plan=Plan(data=4, hsdp='level3', shard_threshold=0.0), n=4, weights=True),
    'zero 3, master weights': Case(plan=Plan(data=4, zero=3), n=4, weights=True, states=3, optimizer=MASTER),
    'zero 1, gradients in fp32': Case(plan=Plan(data=4, zero=1), n=4, states=3, optimizer=MASTER, gradients='fp32'),
    'zero 2, momentum': Case(plan=Plan(data=4, zero=2), n=4, states=1, optimizer=Momentum()),
    'zero 3, plain descent': Case(plan=Plan(data=4, zero=3), n=4, weights=True, states=0, optimizer=Sgd()),
    'zero 3 in groups': Case(plan=Plan(data=4, zero=3, shard_group=2), n=2, weights=True),
    'zero 1 in groups': Case(plan=Plan(data=6, zero=1, shard_group=3, shard_form='dim'), n=3),
    'level 1 of parameters from 4 KiB': Case(
        plan=Plan(data=4, hsdp='level1', shard_threshold=4096.0), n=4, weights=True, small=4096
    ),
    'zero 3 where little divides': Case(
        plan=Plan(data=5, zero=3, shard_form='dim'), n=5, weights=True, sequence=35
    ),
    'zero 2 where little divides': Case(plan=Plan(data=5, zero=2, shard_form='dim'), n=5, sequence=35),
    'zero 3, tensor': Case(plan=Plan(data=4, tensor=2, zero=3), n=4, weights=True),
    'zero 1, tensor, sequence parallel': Case(plan=Plan(data=4, tensor=2, zero=1, sequence_parallel=True), n=4),
    'zero 3, pipeline': Case(plan=Plan(data=2, pipeline=2, micro_batches=2, zero=3), n=2, weights=True),
    'zero 1, pipeline': Case(plan=Plan(data=2, pipeline=2, micro_batches=2, zero=1), n=2),
    'zero 3, copies': Case(plan=Plan(data=4, tensor=2, copies=2, zero=3), n=4, weights=True),
    'zero 1, micro-batches': Case(plan=Plan(data=4, micro_batches=3, zero=1), n=4),
    'zero 2, micro-batches': Case(plan=Plan(data=4, micro_batches=3, zero=2), n=4),
    'zero 2, micro-batches, accumulated whole': Case(
        plan=Plan(data=4, micro_batches=3, zero=2, accumulate='full'), n=4
    ),
    'zero 3, micro-batches': Case(plan=Plan(data=4, micro_batches=3, zero=3), n=4, weights=True),
    'level 1, accumulated sharded': Case(
        plan=Plan(data=4, micro_batches=3, hsdp='level1', shard_threshold=0.0, accumulate='sharded'), n=4, weights=True
    ),
}  # fmt: skip
each_case = pytest.mark.parametrize('case', some(CASES.values(), 2), ids=some(CASES, 2))


# The parameters of a GPT, by hand: what belongs together, name, and the shape that one of t tensor ranks has.


def shapes(case):
    """In the order of use; the backward finishes those of a layer from behind."""
    t, s = case.plan.tensor, case.sequence
    column = {
        'norm1.gain': (H,), 'norm1.bias': (H,),
        'qkv.weight': (A // t, 3, H // A, H), 'qkv.bias': (A // t, 3, H // A),
        'proj.weight': (H, A // t, 1, H // A), 'proj.bias': (H,),
        'norm2.gain': (H,), 'norm2.bias': (H,),
        'fc1.weight': (4 * H // t, H), 'fc1.bias': (4 * H // t,),
        'fc2.weight': (H, 4 * H // t), 'fc2.bias': (H,),
    }  # fmt: skip
    found = {'embedding': {'weight': (V // t, H)}, 'position': {'weight': (s, H)}}
    found |= {f'layer{layer}': column for layer in range(L)}
    return found | {'norm': {'gain': (H,), 'bias': (H,)}, 'head': {'weight': (V // t, H)}}


READ_BACKWARD = ('norm1.gain', 'qkv.weight', 'proj.weight', 'norm2.gain', 'fc1.weight', 'fc2.weight', 'gain', 'weight')


def cut(case, shape):
    """The first dim must divide; of a weight by heads, any."""
    dims = shape if len(shape) > 2 else shape[:1]
    return case.n > 1 and 2 * prod(shape) >= case.small and any(size % case.n == 0 for size in dims)


def held_of(case, shape):
    """Elements that a rank has of a piece, or of the whole where it is not cut."""
    return prod(shape) // (case.n if cut(case, shape) else 1)


def mine(case, stage):
    """What a pipeline rank has."""
    names = list(shapes(case))
    half = 2 + L // 2
    part = names if case.plan.pipeline == 1 else (names[:half], names[half:])[stage]
    return {name: shapes(case)[name] for name in part}


def pieces(case, parts):
    return sum(held_of(case, shape) for part in parts for shape in part.values())


def wholes(case, parts, *, only_cut=False, only=None):
    return sum(
        prod(shape)
        for part in parts
        for name, shape in part.items()
        if (only is None or name in only) and (not only_cut or cut(case, shape))
    )


# What the program holds, op after op


class Held:
    """A rank's memory, and what its ops are called."""

    def __init__(self, case, stage):
        plan = case.plan
        workload = Workload(
            model=Transformer(layers=L, hidden=H, heads=A, vocab=V, sequence=case.sequence),
            batch=2 * plan.data * plan.micro_batches * plan.copies, precision='fp16',
            optimizer=case.optimizer, gradients=case.gradients,
        )  # fmt: skip
        program = lower(workload, plan, plan.data * plan.tensor * plan.pipeline)
        first = stage * plan.data * plan.tensor
        role = program.role(first)
        self.names = [program.op(role, slot).name for slot in range(len(role))]
        self.line = memory(sequential(program)).rank(first).by_kind()

    def at(self, slot, kind):
        return self.line.at(slot)[kind]

    def series(self, kind):
        return self.line.bytes[:, self.line.names.index(kind)].tolist()

    def slots(self, name):
        return [slot for slot, found in enumerate(self.names) if found == name]


def each_stage(case):
    return [(Held(case, stage), mine(case, stage)) for stage in range(case.plan.pipeline)]


@each_case
def test_weights_and_states_at_all_times(case):
    """P·b or P·b/N, and k·P·s/N."""
    for held, own in each_stage(case):
        weights = pieces(case, own.values()) if case.weights else wholes(case, own.values())
        assert set(held.series('parameter')) == {2 * weights}
        assert set(held.series('state')) == {4 * case.states * pieces(case, own.values())}


@each_case
def test_gradients_while_the_updates_free_them(case):
    """P·g/N before the first update, from the last layer to the first, and nothing behind the last."""
    for held, own in each_stage(case):
        left = dict(own)
        for name in reversed(own):
            for slot in held.slots(f'{name}.update.U'):
                assert held.at(slot, 'gradient') == case.g * pieces(case, left.values())
            del left[name]
        assert not left
        assert held.at(0, 'gradient') == 0


@each_case
def test_gradients_while_the_backward_reduces_them(case):
    """At a layer's reduce-scatter in the last micro-batch: pieces of the layers behind it, its wholes and pieces.

    With full accumulation over micro-batches the layers before it are whole; with sharded accumulation all pieces are
    there since the first micro-batch. With copies the first may be in the parts before it.
    """
    plan = case.plan
    several = plan.micro_batches > 1
    sharded = several and (plan.accumulate == 'sharded' or (plan.accumulate == '' and (plan.zero > 1)))
    seen = 0
    for held, own in each_stage(case):
        scatter = '{}.gradients.%s.reduce_scatter.W' % ('shard' if plan.shard_group else 'data')
        for place, name in enumerate(own):
            slots = held.slots(scatter.format(name))
            if not slots:
                assert not any(cut(case, shape) for shape in own[name].values())
                continue
            seen += 1
            before, behind = list(own.values())[:place], list(own.values())[place + 1 :]
            here = finished(case, own[name], every=several)
            count = wholes(case, [here]) + pieces(case, behind)
            count += sum(held_of(case, shape) for shape in here.values() if cut(case, shape))
            count += pieces(case, before) if sharded else wholes(case, before) if several else 0
            ahead = wholes(case, before[-2:]) if plan.copies > 1 else 0
            assert case.g * count <= held.at(slots[-1], 'gradient') <= case.g * (count + ahead)
    assert seen or case.n == 1


def finished(case, part, *, every):
    """Gradients of a layer that are there when the last that is cut is: the backward goes through it from behind."""
    if every:
        return part
    names = list(part)
    last = next(place for place, name in enumerate(names) if cut(case, part[name]))
    # A weight and its bias, a gain and its bias, are done by one op.
    while last and names[last].partition('.')[0] == names[last - 1].partition('.')[0] != 'proj':
        last -= 1
    return {name: part[name] for name in names[last:]}


@pytest.mark.parametrize(
    'name', some([name for name, case in CASES.items() if case.plan.zero in (1, 2) or case.n == 1], 2)
)
def test_nothing_is_gathered_where_weights_stay_whole(name):
    for held, _ in each_stage(CASES[name]):
        assert set(held.series('gathered')) == {0}


TWICE = [name for name, case in CASES.items() if case.plan.zero == 3 or case.plan.hsdp == 'level3']
ONCE = [name for name, case in CASES.items() if case.plan.hsdp in ('level1', 'level2')]


@pytest.mark.parametrize('name', some(TWICE, 2))
def test_one_layer_at_a_time_is_gathered_on_use(name):
    """In the forward all of the layer that is cut, in the backward what its gradients of inputs need."""
    case = replace(CASES[name], plan=replace(CASES[name].plan, prefetch=0))
    for held, own in each_stage(case):
        layers = [layer for layer in own if layer.startswith('layer')]
        for layer in layers:
            for slot in held.slots(f'{layer}.fc1.F'):
                assert held.at(slot, 'gathered') == 2 * wholes(case, [own[layer]], only_cut=True)
            for slot in held.slots(f'{layer}.fc1.I'):
                needed = wholes(case, [own[layer]], only_cut=True, only=READ_BACKWARD)
                assert held.at(slot, 'gathered') == 2 * needed
        most = max(wholes(case, [part], only_cut=True) for part in own.values())
        assert max(held.series('gathered')) == 2 * most


@pytest.mark.parametrize('ahead', [1, 2])
def test_and_as_many_more_as_are_prefetched(ahead):
    case = Case(plan=Plan(data=4, zero=3, prefetch=ahead), n=4, weights=True)
    ((held, own),) = each_stage(case)
    order = list(own)
    for place, name in enumerate(order[: L + 4 - ahead]):
        for slot in held.slots(f'{name}.fc1.F'):
            assert held.at(slot, 'gathered') == 2 * wholes(case, [own[n] for n in order[place : place + ahead + 1]])
    # Layers are gathered whole in the forward; the backward needs less of them, and the other parts are smaller.
    assert max(held.series('gathered')) == 2 * (ahead + 1) * wholes(case, [own['layer0']])


@pytest.mark.parametrize('name', some(ONCE, 2))
def test_once_gathered_weights_stay_to_their_last_use(name):
    """P·b at the turn but for embedding and position, which the backward does not read; then layer by layer less."""
    case = CASES[name]
    ((held, own),) = each_stage(case)
    layers = [layer for layer in own if layer.startswith('layer')]
    for place, layer in enumerate(layers):
        slot = held.slots(f'{layer}.fc1.I')[-1]
        assert held.at(slot, 'gathered') == 2 * wholes(case, [own[n] for n in layers[: place + 1]], only_cut=True)
    turn = held.slots('head.I')[-1]
    late = [*layers, 'norm', 'head']
    assert held.at(turn, 'gathered') == 2 * wholes(case, [own[n] for n in late], only_cut=True)


def test_sixteen_bytes_of_a_weight_over_the_ranks():
    """ZeRO's figure 1: of 16 bytes (2 weights, 2 gradients, 12 states) stage 1 keeps 4 + 12/N, 2 2 + 14/N, 3 16/N."""
    count = {}
    for zero in (0, 1, 2, 3):
        plan = Plan(data=4, zero=zero, micro_batches=2)
        case = Case(plan=plan, n=4, optimizer=MASTER)
        ((held, own),) = each_stage(case)
        p = wholes(case, own.values())
        at = held.slots('head.update.U')[0]
        count[zero] = sum(held.at(at, kind) for kind in ('parameter', 'gradient', 'state')) / p
        if zero == 1:
            count['full'] = held.at(held.slots('loss.I')[-1], 'gradient') / p
    assert count == {0: 16, 1: 2 + 14 / 4, 2: 2 + 14 / 4, 3: 16 / 4, 'full': 2}
