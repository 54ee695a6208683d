"""Sizes that do not divide, sharded by rows or in flat messages, train as torch does unsharded, to 1e-10 in fp64."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from odd_cases import SEEDS, coverage, features, odd_case
from sabotage import change_ops
from trains import trains

from executor.numerics import check
from executor.tensors import initial, members_of
from executor.validate import validate
from simpar.errors import NumericsWrong, ProgramError
from simpar.lower import lower
from simpar.model import Dense, Network, Relu
from simpar.plans import Plan
from simpar.workload import AdamW, Transformer, Workload

MLP = Workload(
    model=Network(
        layers=(Dense(inputs=5, outputs=7), Relu(), Dense(inputs=7, outputs=5), Relu(), Dense(inputs=5, outputs=2)),
        init_std=0.5,
    ),
    batch=15,
    precision='fp64',
    loss='mse',
    optimizer=AdamW(learning_rate=0.01, master_weights=True),
    clip_norm=0.05,
)
GPT = Workload(
    model=Transformer(layers=2, hidden=10, heads=2, vocab=14, sequence=6, ffn=18, tied=True, init_std=0.3),
    batch=12,
    precision='fp64',
    optimizer=AdamW(learning_rate=0.01),
    clip_norm=0.05,
)

case = cache(odd_case)


def test_the_plans_cover_what_shards_meet():
    wanted = {
        'asked for', 'by zero', 'beside dim', 'strategies', 'tensor', 'sequence parallel', 'pipeline', 'copies',
        'micro-batches', 'replicas', 'tied', 'dropout', 'clipped', 'loss scale', 'master weights', 'prefetch',
        'no prefetch', 'reduced every micro-batch', 'reduced once', 'recompute', 'fusion layer', 'fusion none',
        'fusion all', 'fusion float', 'fusion tuple', 'Sgd', 'Momentum', 'Adam', 'AdamW',
        *(f'{count} ranks in a group' for count in (2, 3, 5, 6, 7, 12)),
    }  # fmt: skip
    for form in ('padded', 'flat'):
        found = coverage(one for one in map(case, SEEDS) if form in features(*one))
        assert wanted <= found.keys(), (form, wanted - found.keys())


TIED = Plan(data=3, tensor=2, pipeline=2, micro_batches=2, zero=1, shard_form='flat', sequence_parallel=True)


def test_a_norm_counts_what_tensor_ranks_share_once_and_padding_never():
    """One flat message of weights that tensor ranks split and of norms that both have; a tied weight on both ends."""
    program = trains(GPT, TIED, 12)
    looks = [op for op in program.op_classes if op.operator == 'square_sum']
    assert all('@data' in str(op.attributes['ranks']) for op in looks)
    for look in looks:
        alike = ' '.join('1' for _ in look.reads)
        with pytest.raises(NumericsWrong):
            check(change_ops(program, look.name, attributes={'ranks': alike}), GPT, TIED)


@pytest.mark.parametrize('ranks', [2, 3, 5, 12])
def test_rows_lie_as_torch_chunk_deals_them(ranks):
    """Also where the last ranks have fewer rows or none."""
    plan = Plan(data=ranks, zero=3, shard_form='padded')
    program = lower(replace(MLP, batch=ranks), plan, ranks)
    for layer, (rows, row) in {'dense0': (7, 5), 'dense1': (5, 7), 'dense2': (2, 5)}.items():
        tensor = program.tensor[f'{layer}.weight']
        shards = [initial(program, tensor, rank, 3, torch.float64) for rank in range(ranks)]
        whole = torch.cat(shards)[: rows * row].view(rows, row)
        chunks = list(whole.chunk(ranks)) + [whole[:0]] * ranks
        for shard, chunk in zip(shards, chunks, strict=False):
            assert torch.equal(shard[: chunk.numel()], chunk.flatten())
            assert len(shard) == chunks[0].numel()
            assert not shard[chunk.numel() :].any()


# What is wrong is found wrong.


def changed(program, named, **changes):
    tensors = tuple(replace(tensor, **changes) if tensor.name == named else tensor for tensor in program.tensors)
    assert tensors != program.tensors
    return program.replace(tensors=tensors)


def lowered(**choices):
    plan = Plan(data=3, **choices)
    return lower(MLP, plan, 3), plan


def test_something_in_the_padding_is_found():
    program, _ = lowered(zero=3, shard_form='padded')
    tensor = program.tensor['dense0.bias']
    shares = {rank: torch.ones(3) for rank in range(3)}
    with pytest.raises(NumericsWrong, match='something in its padding'):
        members_of(program, tensor, shares)
    shares[2][1:] = 0
    assert members_of(program, tensor, shares)['dense0.bias.gathered'][0].tolist() == [1.0] * 7


@pytest.mark.parametrize(
    ('named', 'changes', 'what'),
    [
        ('dense0.flat.data', {'shape': (39,)}, 'does not hold 42 elements'),
        ('dense0.flat.data', {'dtype': 'fp32'}, 'packs tensors of another type'),
        ('dense0.flat.data', {'members': ('dense0.weight.gathered',)}, 'bias.gathered in none of the tensors'),
        ('dense0.flat.data', {'members': ('dense0.bias.gathered', 'dense0.weight.gathered')}, 'packs'),
    ],
)
def test_a_buffer_that_does_not_fit_its_members_is_refused(named, changes, what):
    program, _ = lowered(zero=3, shard_form='flat')
    validate(program)
    with pytest.raises(ProgramError, match=what):
        validate(changed(program, named, **changes))
