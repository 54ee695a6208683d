"""Sequences that context ranks share: training as the unsharded model, messages and work by closed forms."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from every import some
from tables import load_table
from trains import plans, trains

from simpar import Plan, Transformer, Workload, load_schedule
from simpar.errors import ScheduleError
from simpar.lower import lower
from simpar.lower.graph.context import ContextSplit
from simpar.model.library.experts import Experts

KINDS = ('all_gather', 'all_to_all', 'ring')
LAYERS, BATCH, TOKENS, HIDDEN, HEADS = 2, 4, 64, 32, 8
WIDTH = HIDDEN // HEADS


def workload(**more):
    model = Transformer(layers=LAYERS, hidden=HIDDEN, heads=HEADS, vocab=24, sequence=TOKENS)
    return Workload(model=replace(model, **more), batch=BATCH, precision='bf16')


def program(kind, ranks, more=(), **plan):
    return lower(workload(**dict(more)), Plan(context=ranks, context_kind=kind, **plan), ranks)


def messages(made, phase, layer='layer1', among='context'):
    """Bytes of the context ranks' messages of a layer, by collective."""
    found = {}
    for op in made.op_classes:
        if op.partition == among and op.phase == phase and layer in op.name:
            found.setdefault(op.operator, []).append(op.bytes)
    return found


# Messages


@pytest.mark.parametrize('ranks', [2, 4, 8])
@pytest.mark.parametrize('kv_heads', [8, 2])
def test_gathered_keys_and_values_are_those_of_all_tokens(ranks, kv_heads):
    """Llama 3 (arXiv 2407.21783, 3.3.2): an all-gather of K and V forward; backward also gradients are scattered."""
    kv = BATCH * TOKENS * 2 * kv_heads * WIDTH * 2
    made = program('all_gather', ranks, {'kv_heads': kv_heads})
    assert messages(made, 'F') == {'all_gather': [kv]}
    assert messages(made, 'I') == {'all_gather': [kv], 'reduce_scatter': [kv]}


@pytest.mark.parametrize('ranks', [2, 4, 8])
def test_heads_are_exchanged_by_four_all_to_alls(ranks):
    """DeepSpeed-Ulysses (arXiv 2309.14509, 3.2): 3 N h for queries, keys and values, N h for the result, over P."""
    one = BATCH * TOKENS * HIDDEN * 2 / ranks
    made = program('all_to_all', ranks)
    for phase in ('F', 'I'):
        # Queries, keys and values lie in one tensor, so three of the four are one message.
        assert sorted(messages(made, phase)['all_to_all']) == [one, 3 * one]


@pytest.mark.parametrize('kv_heads', [1, 2, 4])
def test_heads_of_keys_and_values_fewer_than_ranks_are_sent_to_all_that_need_them(kv_heads):
    """Each of 8 ranks gets a head of queries with its key and value, whoever else gets the same (arXiv 2506.13996)."""
    one = BATCH * TOKENS * WIDTH * 2
    made = program('all_to_all', 8, {'kv_heads': kv_heads})
    for phase in ('F', 'I'):
        assert sorted(messages(made, phase)['all_to_all']) == [one, 3 * one]
    (work,) = {op.dims['heads'] // op.dims['kv_heads'] for op in made.op_classes if op.operator == 'attention'}
    assert work == 1


@pytest.mark.parametrize('split', ['balanced', 'contiguous'])
@pytest.mark.parametrize('ranks', [2, 4, 8])
def test_a_ring_passes_on_keys_and_values_of_one_rank(ranks, split):
    """Ring Attention (arXiv 2310.01889, 3): N − 1 steps, each with a rank's own K and V, backward their gradients."""
    kv = BATCH * TOKENS * 2 * HIDDEN * 2 / ranks
    made = program('ring', ranks, context_split=split)
    assert messages(made, 'F') == {'send_recv': [kv] * (ranks - 1)}
    assert messages(made, 'I') == {'send_recv': [kv] * (2 * (ranks - 1))}


@pytest.mark.parametrize('kind', ['ring', 'all_gather'])
def test_neighbours_exchange_heads_inside_of_a_ring_of_the_others(kind):
    """USP (arXiv 2405.07719, 4): 2 of 8 ranks exchange, then half the heads of their tokens meet those of 4 parts."""
    one, made = BATCH * TOKENS * HIDDEN * 2 / 8, program(kind, 8, context_by_heads=2)
    for phase in ('F', 'I'):
        assert sorted(messages(made, phase, among='context_heads')['all_to_all']) == [one, 3 * one]
    assert made.partitions['context_heads'].groups_GP.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert made.partitions['context_ring'].groups_GP.tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]
    # Twice the tokens and half the heads of a rank alone.
    kv = 2 * one
    sent = {
        'ring': [{'send_recv': [kv] * 3}, {'send_recv': [kv] * 6}],
        'all_gather': [{'all_gather': [4 * kv]}, {'all_gather': [4 * kv], 'reduce_scatter': [4 * kv]}],
    }[kind]
    assert [messages(made, phase, among='context_ring') for phase in ('F', 'I')] == sent
    assert 8 * attention_flops(made, 'F') == attention_flops(lower(workload(), Plan(), 1), 'F')


# Work


def brute_force(split, queries, keys):
    """Pairs of tokens, one by one; those on an edge of what is seen count half, as half of a square does."""

    def tokens(rank):
        return np.concatenate([np.arange(*span) for span in split.spans(rank)])

    apart = tokens(queries)[:, None] - tokens(keys)[None, :]
    ends = np.cumsum(split.documents or (split.sequence,))
    of = np.searchsorted(ends, np.arange(split.sequence), side='right')
    same = of[tokens(queries)][:, None] == of[tokens(keys)][None, :]

    def behind(edge):
        return (apart > edge) + 0.5 * (apart == edge)

    seen = behind(0) - (behind(split.window) if split.window else 0)
    return float((seen * same).sum())


@pytest.mark.parametrize('balanced', [True, False])
def test_pairs_of_two_ranks_are_those_counted_one_by_one(balanced):
    draw = np.random.default_rng(5)
    for _ in range(25):
        ranks = int(draw.integers(2, 6))
        sequence = 2 * ranks * int(draw.integers(1, 7))
        cuts = np.unique(draw.integers(1, sequence, int(draw.integers(0, 4))))
        documents = tuple(np.diff([0, *cuts, sequence]).tolist())
        window = int(draw.choice([0, 0, 1, 3, 9]))
        split = ContextSplit(sequence, ranks, balanced, window, documents if len(documents) > 1 else ())
        for queries in range(ranks):
            found = [split.pairs(queries, keys) for keys in range(ranks)]
            assert found == [brute_force(split, queries, keys) for keys in range(ranks)], split
            assert split.of_all(queries) == pytest.approx(sum(found))


def attention_flops(made, phase):
    return sum(op.flops for op in made.op_classes if 'attention' in op.operator and op.phase == phase)


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('ranks', [2, 8])
def test_balanced_ranks_share_the_work_of_causal_attention(kind, ranks):
    alone, shared = lower(workload(), Plan(), 1), program(kind, ranks)
    for phase in ('F', 'I'):
        assert ranks * attention_flops(shared, phase) == attention_flops(alone, phase)


@pytest.mark.parametrize('ranks', [2, 4, 8])
def test_with_contiguous_parts_all_wait_for_the_rank_of_the_last_tokens(ranks):
    """It has a square of its own, half of it seen, and those of all ranks before it."""
    for kind in ('all_gather', 'ring'):
        made = program(kind, ranks, context_split='contiguous')
        parts = [op for op in made.op_classes if op.operator == 'context_attention' and op.phase == 'F']
        assert sum(op.dims['pairs'] for op in parts) / LAYERS == (2 * ranks - 1) / ranks**2 * TOKENS**2 / 2
        # What they do together is the same however they share it.
        assert ranks * attention_flops(made, 'F') == attention_flops(lower(workload(), Plan(), 1), 'F')


# Sums and shards


@pytest.mark.parametrize('kind', KINDS)
def test_gradients_are_summed_over_data_and_context(kind):
    made = lower(workload(), Plan(data=2, context=2, context_kind=kind), 4)
    sums = {op.partition: op for op in made.op_classes if op.operator == 'all_reduce'}
    assert set(sums) == {'data_context'}
    assert made.partitions['data_context'].groups_GP.tolist() == [[0, 1, 2, 3]]
    assert made.partitions['context'].groups_GP.tolist() == [[0, 1], [2, 3]]


@pytest.mark.parametrize('zero', [1, 3])
def test_optimizer_shards_are_dealt_out_over_data_and_context(zero):
    """Megatron-LM's distributed optimizer shards over its group of data × context ranks."""
    made = lower(workload(), Plan(data=2, context=2, zero=zero), 4)
    held = sum(made.local_bytes(tensor) for tensor in made.tensors if tensor.kind == 'state')
    alone = lower(workload(), Plan(data=4, zero=zero), 4)
    assert held == sum(alone.local_bytes(tensor) for tensor in alone.tensors if tensor.kind == 'state')


# When which wins


def test_each_kind_wins_a_case_as_the_page_says():
    from test_examples_tables import FOUND, step_times

    (place,) = FOUND['context_parallel']
    steps = list(step_times(place['command']).values())
    fastest = [KINDS[cells.index(min(cells))] for cells in (steps[at : at + 3] for at in range(0, 9, 3))]
    assert fastest == ['all_gather', 'all_to_all', 'ring']


# What does not fit

FILE = """simpar: 1
cluster: h100-sxm-8
workload:
  transformer: {{layers: 2, hidden: 64, heads: 8, kv_heads: 2, vocab: 32, sequence: {sequence}{more}}}
  batch: 8
plan: {{{plan}}}
"""


@pytest.mark.parametrize(
    ('plan', 'sequence', 'more', 'said'), load_table(__file__, 'test_what_does_not_fit_is_told_at_its_key')
)
def test_what_does_not_fit_is_told_at_its_key(plan, sequence, more, said, tmp_path):
    from simpar.schedule.schedule import check_against_cluster

    path = tmp_path / 'schedule.yaml'
    path.write_text(FILE.format(plan=plan, sequence=sequence, more=more))
    with pytest.raises(ScheduleError, match=said):
        check_against_cluster(load_schedule(path), 8)


# Training, against models that we did not write

PLANS = plans(__file__, 'PLANS')
# One token of eight a chunk for context 4. Llama has fewer heads of keys and values than context × tensor.
MODELS = {
    'gpt2': {'n_head': 4},
    'llama': {'num_attention_heads': 8, 'num_key_value_heads': 2, 'head_dim': 4},
    'mistral': {'num_attention_heads': 8, 'num_key_value_heads': 4, 'head_dim': 4},
}


@pytest.fixture(scope='module')
def oracles(tmp_path_factory):
    pytest.importorskip('transformers', reason='needs the extra test')
    from huggingface_cases import TINY
    from huggingface_oracle import oracles as made

    return made({kind: {**TINY[kind], **more} for kind, more in MODELS.items()}, tmp_path_factory)


@pytest.mark.parametrize('how', KINDS)
@pytest.mark.parametrize('kind', MODELS)
def test_losses_and_gradients_are_those_of_transformers(kind, how, oracles):
    # Another plan with each model and kind, so that all are trained; a ring of four ranks has two ways around.
    plans = [*PLANS.items()]
    turn = (3 * KINDS.index(how) + [*MODELS].index(kind) + 5) % len(plans)
    for name, (plan, ranks) in some(plans[turn:] + plans[:turn], len(plans)):
        assert oracles(kind).compared(replace(plan, context_kind=how), ranks) <= 1e-10, name


@pytest.mark.parametrize(('plan', 'ranks'), [(Plan(context=4), 4), (Plan(context=2, data=2, tensor=2, zero=1), 8)])
def test_keys_for_each_query_train_to_the_same_and_travel_as_often(plan, ranks, oracles):
    """Of 8 queries and 2 keys among 4 ranks, 8 + 8 + 8 heads are exchanged, 8 + 4 + 4 where ranks alone need them."""
    plan = replace(plan, context_kind='all_to_all')
    each = replace(plan, context_heads='queries')
    assert oracles('llama').compared(each, ranks) <= 1e-10
    few = {'heads': 8, 'kv_heads': 2, 'hidden': 64}
    sent = [max(messages(lower(workload(**few), one, ranks), 'F')['all_to_all']) for one in (plan, each)]
    assert sent[1] * 16 == sent[0] * 24


@pytest.mark.parametrize('how', ['ring', 'all_gather'])
@pytest.mark.parametrize(
    ('kind', 'plan', 'ranks'),
    some(
        [
            ('gpt2', Plan(tensor=2, sequence_parallel=True, zero=1, pipeline=2, micro_batches=2), 16),
            ('llama', Plan(data=2, copies=2, zero=3, context_split='contiguous'), 8),
            ('llama', Plan(tensor=2, recompute='full', context_heads='queries'), 8),
            ('mistral', Plan(copies=2, recompute='selective'), 4),
        ],
        2,
    ),
)
def test_heads_exchanged_inside_of_a_ring_train_to_those_of_transformers(kind, plan, ranks, how, oracles):
    plan = replace(plan, context=4, context_by_heads=2, context_kind=how)
    assert oracles(kind).compared(plan, ranks) <= 1e-10


def test_the_plans_cover_every_pair_of_axes_beside_context():
    axes = {
        'data': lambda plan: plan.data > 1,
        'tensor': lambda plan: plan.tensor > 1,
        'pipeline': lambda plan: plan.pipeline > 1,
        'copies': lambda plan: plan.copies > 1,
        'zero': lambda plan: plan.zero > 0,
        'recompute': lambda plan: plan.recompute != 'none',
    }
    for one, other in combinations(axes, 2):
        met = {(axes[one](plan), axes[other](plan)) for plan, _ in PLANS.values()}
        # Data ranks are there for zero to shard over, but context ranks alone are enough.
        assert {(True, True)} <= met, (one, other)


DROPPED = Transformer(layers=2, hidden=16, heads=4, vocab=24, sequence=16, init_std=0.3, dropout=0.3)
SHARED = Plan(tensor=2, sequence_parallel=True, copies=2, recompute='full')
MIXTURE = replace(DROPPED, dropout=0.0, bias=(), experts=Experts(count=4, top_k=2, aux_loss=0.1))


@pytest.mark.parametrize(
    ('how', 'model', 'plan', 'ranks'),
    [
        *((how, replace(DROPPED, window=5), SHARED, 4) for how in KINDS),
        *((how, replace(DROPPED, position='rotary', documents=(3, 6, 7)), SHARED, 4) for how in KINDS),
        ('ring', replace(DROPPED, window=5), Plan(context=4, context_by_heads=2, copies=2), 4),
        ('all_to_all', replace(DROPPED, attention='unfused'), Plan(data=2), 4),
        # Experts are shared over data ranks.
        ('ring', MIXTURE, Plan(expert=2, zero=3, data=4), 8),
        ('ring', MIXTURE, Plan(expert=2, data=2, tensor=2, sequence_parallel=True, copies=2), 8),
    ],
)
def test_dropout_windows_documents_and_experts_are_those_of_any_plan(how, model, plan, ranks):
    plan = replace(plan, context=max(plan.context, 2), context_kind=how)
    trains(Workload(model=model, batch=ranks), plan, ranks, steps=1)


def test_a_rank_that_takes_wrong_keys_is_found_wrong():
    """A negative control: keys of another step than those that came."""
    from sabotage import change_ops

    from executor.numerics import check
    from simpar.errors import NumericsWrong

    made = replace(workload(), precision='fp32')
    plan = Plan(context=4, context_kind='ring')
    right = lower(made, plan, 4)
    check(right, made, plan, steps=1)
    wrong = change_ops(right, 'layer0.attention.step1.F', attributes={'step': 2})
    with pytest.raises(NumericsWrong):
        check(wrong, made, plan, steps=1)
