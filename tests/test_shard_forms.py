"""Forms of shards: what presets choose, what each form sends and holds by closed forms, and what does not change.

The closed forms count a GPT's parameters from their shapes as torch has them: rows, and elements of a row. ``padded``
rounds rows up to the ranks, as torch.chunk does, ``flat`` the elements of a message, and ``dim`` keeps full what does
not divide.
"""

from dataclasses import replace
from math import ceil

import pytest
from every import some

from simpar import Plan, load_case
from simpar.lower import lower
from simpar.lower.passes.optimizer_parallel import choice_of
from simpar.memory import memory, sequential
from simpar.model import Dense, Network, Relu
from simpar.program.text import format_program, parse_program
from simpar.workload import Adam, Transformer, Workload

H, A, V, S, E, L = 30, 5, 47, 11, 77, 3
"""Hidden width, heads, vocabulary, sequence, width of the feed-forward, layers: nothing divides."""
GPT = Workload(
    model=Transformer(layers=L, hidden=H, heads=A, vocab=V, sequence=S, ffn=E),
    batch=840,
    precision='bf16',
    optimizer=Adam(master_weights=True),
    gradients='fp32',
)
BLOCK = [(H, 1), (H, 1), (3 * H, H), (3 * H, 1), (H, H), (H, 1), (H, 1), (H, 1), (E, H), (E, 1), (H, E), (H, 1)]
"""norm1, qkv, proj, norm2, fc1, fc2: weights and biases."""
LAYERS = [[(V, H)], [(S, H)], *([BLOCK] * L), [(H, 1), (H, 1)], [(V, H)]]
W, G, ST = 2, 4, 12
"""Bytes of a weight, a gradient, and its states and master weight."""


def padded(parts, ranks):
    """Elements of the buffer of a message."""
    return sum(ceil(rows / ranks) * ranks * row for rows, row in parts)


def flat(parts, ranks):
    return ceil(sum(rows * row for rows, row in parts) / ranks) * ranks


FORMS = {'padded': padded, 'flat': flat}


def sent(program):
    """Bytes of all gathers, and of all reduce-scatters, of a step."""
    (role,) = program.roles
    found = {'all_gather': 0, 'reduce_scatter': 0, 'all_reduce': 0}
    for slot in range(len(role)):
        op = program.op(role, slot)
        if op.kind == 'collective':
            found[op.operator] += int(op.bytes)
    return found


def most(program):
    """The most bytes of each kind that a rank holds, op after op."""
    line = memory(sequential(program)).rank(0).by_kind()
    return dict(zip(line.names, line.bytes.max(axis=0).tolist(), strict=True))


@pytest.mark.parametrize('form', FORMS)
@pytest.mark.parametrize('ranks', some([2, 3, 4, 5, 6, 7, 12], 2))
def test_bytes_and_memory_of_zero_with_padding(form, ranks):
    """A step sends 2Ψ and holds (2 + 4)Ψ + 12Ψ/N with stage 1, and so on (Rajbhandari et al. 2020), Ψ with padding."""
    buffers = [FORMS[form](parts, ranks) for parts in LAYERS]
    total, largest, full = sum(buffers), max(buffers), sum(rows * row for parts in LAYERS for rows, row in parts)
    for stage in (1, 2, 3):
        for count in (1, 2):
            plan = Plan(zero=stage, shard_form=form, micro_batches=count, prefetch=0)
            program = lower(GPT, plan, ranks)
            gathers, scatters = {1: (1, 1), 2: (1, count), 3: (2 * count, count)}[stage]
            assert sent(program) == {
                'all_gather': gathers * W * total, 'reduce_scatter': scatters * G * total, 'all_reduce': 0,
            }  # fmt: skip
            held = most(program)
            assert held['parameter'] == (W * total // ranks if stage == 3 else W * total)
            assert held['state'] == ST * total // ranks
            assert held.get('gathered', 0) == (W * largest if stage == 3 else 0)
            if stage == 1 and count == 2:
                assert held['gradient'] <= G * (full + largest // ranks)
            if stage > 1 and count == 2:
                # All shards, and a message's full gradients beside them.
                sizes = [sum(rows * row for rows, row in parts) for parts in LAYERS]
                assert held['gradient'] <= G * (total // ranks + max(sizes))
                assert held['gradient'] >= G * total // ranks


def test_presets_keep_dim_where_all_of_a_message_divides():
    """The very programs; and MindSpore's levels keep full what does not divide."""
    even = replace(GPT, model=Transformer(layers=2, hidden=24, heads=12, vocab=48, sequence=12))
    for stage in (1, 2, 3):
        programs = [lower(even, Plan(zero=stage, shard_form=form), 12).hash for form in ('', 'dim')]
        assert programs[0] == programs[1]
    for level in ('level1', 'level2', 'level3'):
        plan = Plan(hsdp=level, shard_threshold=0.0)
        assert lower(GPT, plan, 7).hash == lower(GPT, replace(plan, shard_form='dim'), 7).hash
        assert lower(GPT, plan, 7).notes
    assert [choice_of(Plan(zero=stage)).form for stage in range(4)] == ['dim', 'flat', 'flat', 'padded']
    assert choice_of(Plan(hsdp='level3', zero=3)).form == 'dim'
    assert choice_of(Plan(shard=('state',))).form == 'dim'
    assert choice_of(Plan(hsdp='level1', shard_form='flat')).form == 'flat'


def test_a_preset_packs_the_messages_that_need_it_and_no_others():
    layers = (Dense(inputs=8, outputs=12), Relu(), Dense(inputs=12, outputs=7))
    workload = Workload(model=Network(layers=layers), batch=12, loss='mse')
    program = lower(workload, Plan(zero=1), 4)
    assert program.tensor['d:dense0.weight'].splits
    assert program.tensor['d:dense1.flat.data'].members == ('d:dense1.weight.whole', 'd:dense1.bias.whole')
    assert not program.notes


def test_the_text_form_and_the_hash_cover_what_a_buffer_packs():
    program = lower(GPT, Plan(zero=3, shard_form='flat'), 7)
    text = format_program(program)
    assert '"members": ["norm.gain.gathered", "norm.bias.gathered"]' in text
    again = parse_program(text)
    assert again.hash == program.hash
    assert again.tensor['norm.flat.data'] == program.tensor['norm.flat.data']
    swapped = tuple(
        replace(tensor, members=tensor.members[::-1]) if tensor.name == 'norm.flat.data' else tensor
        for tensor in program.tensors
    )
    assert program.replace(tensors=swapped).hash != program.hash


FILE = """\
simpar: 1
cluster: h100-sxm-8
workload: {network: [dense: {in: 8, out: 7}, dense: {in: 7, out: 5}], batch: 8}
plan: {zero: 3, shard_form: FORM}
"""


def test_a_form_is_a_key_of_a_plan(put):
    path = put('schedule.yaml', FILE.replace('FORM', 'flat'))
    assert load_case(path).program.tensor['dense0.flat.data'].members
