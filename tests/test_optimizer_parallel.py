"""Optimizer parallelism: what is cut, what a rank holds of it, where gathers and reductions stand."""

import pytest
from plain_costs import plain_costs, random_costs

from simpar import Plan, load_case, simulate
from simpar.errors import Infeasible
from simpar.lower import lower
from simpar.lower.passes.optimizer_parallel import LEVELS, STAGES
from simpar.memory import memory
from simpar.model import Dense, Network, Relu
from simpar.workload import Adam, Sgd, Transformer, Workload

WIDTH, LAYERS, RANKS = 16, 6, 4
P = WIDTH * WIDTH
"""Elements of a layer's weight."""
B = 2
"""Bytes of a weight or gradient in fp16; a state has 4."""


def chain(layers=LAYERS, optimizer=None) -> Workload:
    dense = [Dense(inputs=WIDTH, outputs=WIDTH, bias=False) for _ in range(layers)]
    model = Network(layers=tuple(layer for one in dense for layer in (one, Relu())))
    return Workload(model=model, batch=16, precision='fp16', loss='mse', optimizer=optimizer or Adam())


def slots(program, role=0):
    of = program.roles[role]
    return [program.op(of, slot).name for slot in range(len(of))]


# memory: the closed forms of references to ZeRO (Rajbhandari et al. 2020, table 1) and MindSpore's levels


N = RANKS


@pytest.mark.parametrize('ahead', range(6))
def test_no_more_weights_are_gathered_than_one_and_those_ahead(ahead):
    """Whatever the times: a gather waits for the free of the weights before."""
    program = lower(chain(), Plan(data=N, zero=3, prefetch=ahead, micro_batches=2), N)
    for seed in range(4):
        line = memory(simulate(program, random_costs(program, seed))).rank(0).by_kind()
        at_most = line.bytes[:, line.names.index('gathered')].max()
        assert at_most <= (ahead + 1) * P * B


def even_costs(program):
    """Compute takes a second, communication half of one; updates and what launches nothing take none."""
    return plain_costs(
        program, lambda op: op.phase in 'FIW' and op.operator not in ('reshard', 'relu', 'mse'), lambda op: 0.5
    )


# where messages stand


def step_of(**choices) -> float:
    program = lower(chain(optimizer=Sgd()), Plan(data=2, **choices), 2)
    return simulate(program, even_costs(program), steps=3).step


def test_steps_by_hand():
    """6 layers of F, I, W of a second each, the first without I: 17 s of computing; messages of half a second."""
    computing = 3 * LAYERS - 1
    assert step_of() == computing + 0.5  # all but the first layer's sum is hidden
    assert step_of(reduce_gradients='end') == computing + 0.5 * LAYERS
    assert step_of(zero=1) == computing + 0.5 + 0.5  # and the first layer's gather, the others under the forward
    assert step_of(zero=1, reduce_gradients='end') == computing + 0.5 * LAYERS + 0.5
    gathers = 2 * LAYERS - 1
    # Every gather waits and is waited for; in the backward it also stands behind the sum of the layer behind.
    assert step_of(zero=3, prefetch=0) == computing + 0.5 * gathers + 0.5 * (LAYERS - 2) + 0.5
    assert step_of(zero=3, fusion='all') == computing + 3 * 0.5
    assert step_of(zero=3, streams='single') == computing + 0.5 * (gathers + LAYERS)


def test_prefetched_gathers_hide_under_the_layer_before():
    """But the step's first, and the last layer's for its backward, which waits until its forward is free."""
    assert step_of(zero=3, prefetch=1) == 3 * LAYERS - 1 + 0.5 + 0.5 + 0.5


@pytest.mark.parametrize(('choices', 'gathers'), [({'hsdp': 'level2'}, 1), ({'zero': 3}, 2 * 4)])
def test_gathers_on_use_are_one_a_step_and_on_use_twice_two_a_micro_batch(choices, gathers):
    plan = Plan(data=2, tensor=2, copies=2, micro_batches=4, shard_threshold=0.0, **choices)
    model = Transformer(layers=2, hidden=16, heads=4, vocab=32, sequence=8)
    names = slots(lower(Workload(model=model, batch=16), plan, 4))
    assert sum(name.startswith('layer0.weights.data.all_gather') for name in names) == gathers


def test_groups_of_neighbours_and_what_repeats_them():
    program = lower(chain(), Plan(data=4, tensor=2, pipeline=1, zero=3, shard_group=2), 8)
    assert program.partitions['shard'].groups_GP.tolist() == [[0, 2], [4, 6], [1, 3], [5, 7]]
    assert program.partitions['replica'].groups_GP.tolist() == [[0, 4], [2, 6], [1, 5], [3, 7]]
    names = slots(program)
    scatter = names.index('dense0.gradients.shard.reduce_scatter.W')
    assert names[scatter + 1] == 'dense0.gradients.replica.all_reduce.W'


# what stays unsharded


def test_what_does_not_divide_by_a_dim_stays_full_with_a_note():
    layers = (Dense(inputs=8, outputs=8), Dense(inputs=8, outputs=6, bias=False))
    plan = Plan(data=4, zero=3, shard_form='dim')
    program = lower(Workload(model=Network(layers=layers), batch=8, loss='mse'), plan, 4)
    assert program.notes == (
        'dense1.weight stays unsharded on every data rank: 6 rows are not divisible by a shard group of 4',
    )
    assert not program.tensor['dense1.weight'].splits
    assert 'dense1.gradients.data.all_reduce.W' in slots(program)


def test_small_and_named_parameters_stay_whole():
    def cut(**choices):
        program = lower(chain(), Plan(data=2, **choices), 2)
        return {tensor.name for tensor in program.tensors if tensor.kind == 'parameter' and tensor.splits}

    everything = {f'dense{layer}.weight' for layer in range(LAYERS)}
    assert cut(zero=3) == cut(zero=3, shard_threshold=P * B) == everything
    assert cut(zero=3, shard_threshold=P * B + 1.0) == cut(hsdp='level1') == set()
    assert cut(hsdp='level1', shard_threshold=0.0) == everything
    assert cut(zero=3, unsharded=('dense[01].*',)) == everything - {'dense0.weight', 'dense1.weight'}


# presets and conflicts


@pytest.mark.parametrize(('key', 'table'), [('hsdp', LEVELS), ('zero', STAGES)])
def test_presets_are_keys(key, table):
    for level, (parts, gather) in table.items():
        preset = lower(chain(), Plan(data=2, shard_threshold=0.0, **{key: level}), 2)
        assert preset.hash == lower(chain(), Plan(data=2, shard=parts, gather=gather), 2).hash


def test_equal_presets_and_keys_may_stand_together():
    plan = Plan(data=2, hsdp='level3', zero=3, shard=('weights', 'gradients', 'state'), gather='on-use-twice')
    assert lower(chain(), plan, 2).hash == lower(chain(), Plan(data=2, hsdp='level3'), 2).hash


def test_a_group_that_does_not_divide_the_ranks_is_infeasible():
    with pytest.raises(Infeasible, match='4 does not divide the 6 data ranks'):
        lower(Workload(model=chain().model, batch=12, loss='mse'), Plan(zero=3, shard_group=4), 6)


def test_nothing_is_cut_on_one_data_rank():
    assert lower(chain(), Plan(zero=3), 1).hash == lower(chain(), Plan(), 1).hash


# second shards


def test_second_shards_are_gathered_among_neighbours_from_the_second_time_on():
    plan = Plan(data=4, zero=3, micro_batches=2, second_shards=2)
    program = lower(chain(), plan, 4)
    assert program.partitions['data.near'].groups_GP.tolist() == [[0, 1], [2, 3]]
    names = slots(program)
    for layer in range(LAYERS):
        gathers = [name for name in names if name.startswith(f'dense{layer}.weights.') and 'all_gather' in name]
        forward, backward = (f'dense{layer}.weights.data.near.all_gather.{phase}' for phase in 'FI')
        assert gathers == [f'dense{layer}.weights.data.all_gather.F', backward, forward, backward]
    # A gather's bytes are those of the full weight, whoever takes part.
    assert {op.bytes for op in program.op_classes if op.operator == 'all_gather'} == {P * B}
    sums = {op.partition for op in program.op_classes if op.operator == 'reduce_scatter'}
    assert sums == {'data'}


@pytest.mark.parametrize('ahead', [0, 1])
def test_second_shards_are_held_to_the_end_of_the_step(ahead):
    """P·b/2 beside what is gathered, over neighbours of 2, and nothing of it between steps."""
    program = lower(chain(), Plan(data=4, zero=3, prefetch=ahead, second_shards=2), 4)
    line = memory(simulate(program, random_costs(program, 1))).rank(0).by_kind()
    held, states = (line.bytes[:, line.names.index(kind)] for kind in ('gathered', 'gradient'))
    second = LAYERS * P * B // 2
    assert held.max() == second + (1 + ahead) * P * B
    # Updates free gradients while nothing is gathered.
    assert second in held[states > 0]
    assert held[0] <= (1 + ahead) * P * B


def test_a_slow_network_is_crossed_once_for_each_weight():
    """Of 4 gathers and 2 sums over 2 servers 1 and 2 are left where all others travel inside of a server: half."""
    words = ['cluster.nodes=2', 'plan.data=16', 'workload.batch=64', 'workload.transformer.layers=2', 'against={}']
    words += ['cluster.stack=deepspeed', 'cluster.links.infiniband=0.1']
    case = load_case('examples/transformer_h100_7b.yaml', [*words, 'plan.second_shards=8'])
    without = load_case('examples/transformer_h100_7b.yaml', words).predict(tell=False)
    assert case.predict(tell=False).step < 0.75 * without.step


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        ({'zero': 1, 'second_shards': 2}, 'second_shards: 2, but no weights are gathered twice; write zero: 3'),
        ({'hsdp': 'level2', 'second_shards': 2}, 'no weights are gathered twice'),
        ({'zero': 3, 'second_shards': 3}, '3 does not divide the 4 ranks of a shard group; choose a divisor'),
        ({'zero': 3, 'second_shards': 1}, '1 rank would hold whole weights'),
        ({'zero': 3, 'second_shards': 2, 'expert': 2}, '2 beside expert: 2, whose data ranks are no neighbours'),
        ({'zero': 1, 'shard_form': 'owned'}, 'owned, but no matrix is updated as a whole'),
        ({'zero': 3, 'shard_form': 'owned'}, 'owned, but weights are sharded'),
    ],
)
def test_what_does_not_go_is_refused(words, message):
    with pytest.raises(Infeasible, match=message):
        lower(chain(), Plan(data=4, **words), 4)
