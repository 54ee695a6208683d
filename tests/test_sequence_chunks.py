"""Chunks of a sequence in a pipeline: papers' bubbles and memory, the work of whole samples, and the same training."""

from dataclasses import replace
from itertools import product

import pytest
from every import some
from sabotage import change_ops
from trains import ONCE

from simpar.errors import Infeasible, NumericsWrong
from simpar.lower import lower
from simpar.model.library.experts import Experts
from simpar.pipeline import StageTimes, named_order, peak_live, step_time
from simpar.plans import Plan
from simpar.schedule.checks import pipeline_fits
from simpar.workload import Adam, Transformer, Workload

NAME = 'mindspore-2.10/'
GPT = Workload(
    model=Transformer(layers=4, hidden=8, heads=4, vocab=12, sequence=12, init_std=0.3),
    batch=8,
    precision='fp64',
    optimizer=Adam(learning_rate=0.01),
)


def plan(order='seqpipe', chunks=2, **more):
    return Plan(**{'pipeline': 2, 'micro_batches': 2, 'order': NAME + order, 'sequence_chunks': chunks, **more})


# Closed forms


@pytest.mark.parametrize(
    ('name', 'stages'), [('seqpipe', 1), ('seqpipe', 2), ('seqvpp', 2), ('seqvpp', 3), ('seqsmartvpp', 2)]
)
def test_the_bubble_is_one_of_whole_samples_over_the_chunks(name, stages):
    """Seq1F1B (arXiv 2406.03488): p − 1 items wait, and an item of k chunks lasts a k-th of a micro-batch."""
    for p, rounds, k in product((2, 3, 4, 8), (1, 3), (1, 2, 3, 4)):
        m, even = p * rounds, p % k == 0
        if name != 'seqpipe' and not even:
            continue
        order = named_order(NAME + name, p, m, stages, k)
        of_chunk = StageTimes.uniform(p * stages, 1.0 / k, 1.3 / k, 0.7 / k)
        assert step_time(order, of_chunk, 1) == pytest.approx(m * stages * 3 + (p - 1) * 3 / k)


def test_a_rank_keeps_the_chunks_of_its_warm_up():
    """1F1B's p − r samples become p − r + k − 1 chunks of a k-th; over several stages as in VPP, and k − 1 more."""
    for p, rounds, k, v in product((2, 4, 8), (1, 3), (1, 2, 4), (1, 2)):
        m = p * rounds
        kept = peak_live(named_order(f'{NAME}seqpipe', p, m, v, k))
        hop, ahead = (1, 0) if v == 1 else (2, (v - 1) * p * k)
        assert list(kept) == [min(ahead + hop * (p - 1 - r) + k, m * k * v) for r in range(p)]
        if v > 1 and p % k == 0:
            kept = peak_live(named_order(f'{NAME}seqvpp', p, m, v, k))
            assert list(kept) == [min((v - 1) * p + 2 * (p - 1 - r) + k, m * k * v) for r in range(p)]


def held_before_backward(program, rank):
    """Bytes of activations that a rank holds when its first backward begins."""
    role, held = program.role(rank), {}
    for slot in range(len(role)):
        op = program.op(role, slot)
        if op.phase != 'F' or (op.kind == 'recv' and op.phase == 'I'):
            break
        for name in op.writes:
            if program.tensor[name].kind == 'activation':
                held[name, int(role.micro_batch[slot])] = program.local_bytes(program.tensor[name])
        for name in op.frees:
            held.pop((name, int(role.micro_batch[slot])), None)
    return sum(held.values())


def test_activations_of_programs_are_those_of_the_form():
    """Keys and values of earlier chunks are what a sample keeps anyway; so is all else, a chunk at a time."""
    made = replace(GPT, batch=16)
    whole = held_before_backward(lower(made, plan('seqpipe', 1, pipeline=4, micro_batches=8), 4), 1) / 3
    for k in (2, 3, 4):
        program = lower(made, plan('seqpipe', k, pipeline=4, micro_batches=8), 4)
        assert held_before_backward(program, 1) == whole * (3 + k - 1) / k


# What a chunk does


def ops(program, operator, phase):
    return [op for op in program.op_classes if op.operator == operator and op.phase == phase]


def test_chunks_do_the_attention_of_a_sample_between_them():
    """Chunk c of k sees its own triangle and c squares: (2 c + 1) / k² of the pairs."""
    for model in (GPT.model, replace(GPT.model, window=5), replace(GPT.model, position='rotary', documents=(5, 3, 4))):
        made = replace(GPT, model=model)
        whole = lower(made, plan('seqpipe', 1), 2)
        for k in (2, 3, 6):
            program = lower(made, plan('seqpipe', k), 2)
            for phase in ('F', 'I'):
                parts = ops(program, 'chunk_attention', phase)
                total = sum(op.flops for op in ops(whole, 'attention', phase))
                assert sum(op.flops for op in parts) == pytest.approx(total, rel=1e-12)
            if model == GPT.model:
                first = [op for op in ops(program, 'chunk_attention', 'F') if op.name.startswith('layer0.')]
                assert [op.dims['pairs'] for op in first] == [(2 * c + 1) * 144 / k**2 / 2 for c in range(k)]
                assert [len(op.reads) for op in first] == [2 + c for c in range(k)]


def test_a_window_reads_only_the_chunks_that_it_sees():
    program = lower(replace(GPT, model=replace(GPT.model, window=3)), plan('seqpipe', 4), 2)
    first = [op for op in ops(program, 'chunk_attention', 'F') if op.name.startswith('layer0.')]
    assert [op.attributes['parts'] for op in first] == [1, 2, 2, 2]


# Training

PLANS = {
    'two stages a rank': (GPT, replace(plan('seqpipe', 3), chunks=2), 2),
    'less warm-up, ZeRO 3': (GPT, plan('seqsmartvpp', data=2, zero=3), 4),
    'tensor, sequence parallel, all made again': (
        GPT, plan('seqvpp', tensor=2, sequence_parallel=True, recompute='full', copies=2, data=2, zero=2), 8
    ),
    'tiles, late receives, attention made again, dropout': (
        replace(GPT, model=replace(GPT.model, dropout=0.3)),
        plan(tensor=2, tiles=2, reduce='late', receive='late', recompute='selective', sum_loss=True), 4
    ),
    'a window over four chunks': (
        replace(GPT, model=replace(GPT.model, window=4)), plan('seqpipe', 4, recompute='full'), 2
    ),
    'documents and positions that turn': (
        replace(GPT, model=replace(GPT.model, position='rotary', documents=(2, 6, 4))), plan('seqpipe', 3), 2
    ),
    'latent attention': (
        replace(
            GPT,
            model=replace(
                GPT.model, position='rotary', kv_lora_rank=8, qk_nope_head_dim=4, qk_rope_head_dim=2, v_head_dim=4
            ),
        ),
        plan(),
        2,
    ),
    'tied, grouped queries, clipped': (
        replace(GPT, model=replace(GPT.model, tied=True, kv_heads=2), clip_norm=0.05),
        plan('seqvpp', exchange='fused', tensor=2, scatter_gather=True), 4,
    ),
}  # fmt: skip


@pytest.mark.parametrize('name', some(PLANS, 2))
def test_chunks_train_as_torch_does_with_whole_samples(name):
    from pipeline_cases import left_over

    from executor.numerics import check
    from executor.validate import validate

    made, asked, ranks = PLANS[name]
    program = lower(made, asked, ranks)
    validate(program)
    assert check(program, made, asked, steps=ONCE).worst.error < 1e-11
    assert left_over(program) <= {'loss', 'gradients.squares'}


def test_a_chunk_that_takes_another_for_its_keys_is_found_wrong():
    from executor.numerics import check

    asked = plan('seqpipe', 3)
    right = lower(GPT, asked, 2)
    for op, key in (('layer0.attention.chunk2.F', 'first_key'), ('position.chunk1.F', 'first')):
        with pytest.raises(NumericsWrong):
            check(change_ops(right, op, attributes={key: 1}), GPT, asked, steps=1)


# Refusals


@pytest.mark.parametrize(
    ('key', 'changed', 'more'),
    [
        ('plan.sequence_chunks', {}, {'order': '1f1b'}),
        ('plan.sequence_chunks', {}, {'order': f'{NAME}1f1b'}),
        ('plan.sequence_chunks', {}, {'pipeline': 1}),
        ('plan.sequence_chunks', {}, {'sequence_chunks': 5}),
        ('plan.sequence_chunks', {}, {'sequence_chunks': 6, 'tensor': 4, 'sequence_parallel': True}),
        ('plan.sequence_chunks', {'attention': 'unfused'}, {}),
        ('plan.sequence_chunks', {}, {'strategies': {'layer*.fc1': ((1, 1, 1), (1, 1))}}),
        ('plan.context', {}, {'context': 2}),
        ('workload.transformer.experts', {'experts': Experts(count=4, top_k=2), 'bias': ()}, {}),
    ],
)
def test_what_chunks_cannot_stand_beside_is_refused_by_name(key, changed, more):
    made, asked = replace(GPT, model=replace(GPT.model, **changed)), replace(plan(), **more)
    (problem,) = pipeline_fits(made, asked)
    assert problem.place == key
    assert problem.instead
    with pytest.raises(Infeasible, match=problem.what.split(' ')[0]):
        lower(made, asked, asked.pipeline * asked.context * asked.tensor)
