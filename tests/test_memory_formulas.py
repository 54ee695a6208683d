"""Memory against closed forms: parameters of a GPT, and the activations of a transformer layer by the published count.

Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", section 4: a layer keeps
s b h (34 + 5 a s / h) bytes in 16 bits; over t tensor ranks s b h (10 + 24 / t + 5 a s / (h t)), and with sequence
parallelism s b h / t (34 + 5 a s / h). docs/memory.md goes through its terms and what differs here.
"""

import pytest

from simpar.lower import lower
from simpar.memory import memory, sequential
from simpar.plans import Plan
from simpar.workload import Adam, Sgd, Transformer, Workload

S, B, H, A, V = 32, 8, 64, 4, 128
"""Sequence, batch, hidden width, heads, vocabulary."""


def held(plan, *, layers=2, precision='fp16', optimizer=None, gradients=None, **model):
    """Memory of rank 0 op after op, and the slot of the first op of the backward pass."""
    workload = Workload(
        model=Transformer(layers=layers, hidden=H, heads=A, vocab=V, sequence=S, **model),
        batch=B, precision=precision, optimizer=optimizer or Adam(), gradients=gradients,
    )  # fmt: skip
    program = lower(workload, plan, (plan.data or 1) * plan.tensor)
    role = program.roles[0]
    turn = next(slot for slot in range(len(role)) if program.op(role, slot).phase == 'I')
    return memory(sequential(program)).ranks[0], turn


def kept_by_a_layer(plan, **model):
    """Bytes that one more layer keeps from forward to backward."""
    sizes = []
    for layers in (2, 3):
        rank, turn = held(plan, layers=layers, **model)
        sizes.append(kept_by_the_forward(rank, turn))
    return sizes[1] - sizes[0]


def kept_by_the_forward(rank, turn):
    """Bytes of activations that are there when the backward's first op starts, without the gradient that it writes."""
    there, tensors = rank.there(turn), rank.program.tensors
    held = zip(rank.lives.tensor[there].tolist(), rank.lives.bytes[there].tolist(), strict=True)
    kept = ((tensors[one], size) for one, size in held)
    return sum(size for one, size in kept if one.kind == 'activation' and not one.name.startswith('d:'))


# The terms of the paper, in bytes over s b h, each with the number of tensor ranks that share it.


def published(t, *, sequence_parallel=False):
    """10 + 24 / t, or 34 / t: without the matrices of attention, which flash attention does not keep."""
    shared = t if sequence_parallel else 1
    norm_inputs, attention_input, feed_forward_input, dropout_masks = 4, 2, 2, 2
    queries_keys_values, projection_input, gelu_input, second_product_input = 6, 2, 8, 8
    inside = queries_keys_values + projection_input + gelu_input + second_product_input
    return (norm_inputs + attention_input + feed_forward_input + dropout_masks) / shared + inside / t


def different(t, *, sequence_parallel=False):
    """What is kept here besides, and not: bytes over s b h, each explained in docs/memory.md."""
    shared = t if sequence_parallel else 1
    no_dropout_masks = -2 / shared
    mean_and_rstd_of_two_norms = 2 * 2 * 2 / H / shared
    logsumexp_of_attention_in_fp32 = 4 * A / H / t
    return no_dropout_masks + mean_and_rstd_of_two_norms + logsumexp_of_attention_in_fp32


def test_the_terms_are_the_papers():
    assert published(1) == 34
    assert [published(t) for t in (2, 4, 8)] == [10 + 24 / t for t in (2, 4, 8)]
    assert [published(t, sequence_parallel=True) for t in (2, 4)] == [34 / t for t in (2, 4)]


@pytest.mark.parametrize('reduce', ['early', 'late'])
@pytest.mark.parametrize('tensor', [1, 2, 4])
def test_a_layer_keeps_the_published_bytes(tensor, reduce):
    expected = S * B * H * (published(tensor) + different(tensor))
    assert kept_by_a_layer(Plan(data=1, tensor=tensor, reduce=reduce)) == expected


@pytest.mark.parametrize('reduce', ['early', 'late'])
@pytest.mark.parametrize('tensor', [2, 4])
def test_sequence_parallelism_shares_every_term(tensor, reduce):
    plan = Plan(data=1, tensor=tensor, sequence_parallel=True, reduce=reduce)
    terms = published(tensor, sequence_parallel=True) + different(tensor, sequence_parallel=True)
    assert kept_by_a_layer(plan) == S * B * H * terms


def test_unfused_attention_without_dropout_keeps_one_matrix():
    """The probability, 2 a s² b bytes, in place of the logsumexp."""
    lse = 4 * A * S * B
    assert kept_by_a_layer(Plan(data=1), attention='unfused') - kept_by_a_layer(Plan(data=1)) == 2 * A * S * S * B - lse


def test_dropout_beside_flash_attention_keeps_two_masks():
    assert kept_by_a_layer(Plan(data=1), dropout=0.1) - kept_by_a_layer(Plan(data=1)) == 2 * S * B * H


@pytest.mark.parametrize('copies', [2, 4, 8])
def test_copies_together_keep_what_the_batch_keeps(copies):
    """All copies have gone forward before the first goes backward: neither saved nor added."""
    whole, sliced = Plan(data=1, tensor=4), Plan(data=1, tensor=4, copies=copies)
    assert kept_by_a_layer(sliced) == kept_by_a_layer(whole)


def test_data_parallelism_divides_the_batch():
    assert kept_by_a_layer(Plan(data=4)) * 4 == kept_by_a_layer(Plan(data=1))


def test_twice_the_bytes_in_fp32_but_for_the_logsumexp():
    lse = 4 * A * S * B
    assert kept_by_a_layer(Plan(data=1), precision='fp32') - lse == 2 * (kept_by_a_layer(Plan(data=1)) - lse)


def test_grouped_queries_keep_fewer_keys_and_values():
    """2 s b h for the queries, 2 s b h × groups / heads for the keys and as much for the values."""
    saved = kept_by_a_layer(Plan(data=1)) - kept_by_a_layer(Plan(data=1), kv_heads=1)
    assert saved == S * B * H * 4 * (1 - 1 / A)


def test_the_feed_forward_keeps_twice_its_width():
    """Input and output of GELU, 2 s b f bytes each."""
    assert kept_by_a_layer(Plan(data=1)) - kept_by_a_layer(Plan(data=1), ffn=2 * H) == 2 * 2 * S * B * (4 * H - 2 * H)


@pytest.mark.parametrize('tensor', [1, 2, 4])
def test_besides_its_layers_a_gpt_keeps_the_papers_extras(tensor):
    """2 s b h for the first layer's input in place of the embedding's dropout mask; 2 s b h for the head's input and
    2 s b h for that of the last norm, its mean and rstd; 2 s b v / t of logits and the loss, of which the paper counts
    the logits in fp32."""
    plan = Plan(data=1, tensor=tensor)
    rank, turn = held(plan, layers=1)
    input_and_last = S * B * (2 * H + 2 * H + 4)
    logits, lse, loss = 2 * S * B * V // tensor, 2 * S * B, 4
    layers = kept_by_the_forward(rank, turn) - input_and_last - logits - lse - loss
    # A layer's last residual is the input of the next norm: here of the last one.
    assert layers == kept_by_a_layer(plan)


# Parameters, gradients, states


def parameters(layers, t=1, *, tied=False):
    """On one of t tensor ranks: matrices and column-cut biases are cut, norms, positions and row-cut biases whole."""
    layer = (3 * H * H + 3 * H) / t + (H * H / t + H) + (4 * H * H + 4 * H) / t + (4 * H * H / t + H) + 2 * 2 * H
    return V * H / t * (1 if tied else 2) + S * H + layers * layer + 2 * H


def test_the_count_is_the_usual_one():
    """12 h² + 13 h a layer (Narayanan et al. 2021, equation 2), vocabulary and sequence times h, and the last norm."""
    assert parameters(3, tied=True) == 3 * (12 * H * H + 13 * H) + (V + S) * H + 2 * H


@pytest.mark.parametrize('tied', [False, True])
@pytest.mark.parametrize('tensor', [1, 2, 4])
@pytest.mark.parametrize(('precision', 'width'), [('fp16', 2), ('fp32', 4)])
def test_parameters_gradients_and_states_of_a_gpt(tensor, tied, precision, width):
    """Adam keeps two moments in fp32; all gradients are there when the updates begin, and none when they have ended."""
    count = parameters(2, tensor, tied=tied)
    rank, _ = held(Plan(data=1, tensor=tensor), precision=precision, tied=tied)
    line = rank.by_kind()
    most = dict(zip(line.names, line.bytes.max(axis=0).tolist(), strict=True))
    least = dict(zip(line.names, line.bytes.min(axis=0).tolist(), strict=True))
    assert most['parameter'] == least['parameter'] == width * count
    assert most['state'] == least['state'] == 2 * 4 * count
    assert (most['gradient'], least['gradient']) == (width * count, 0)


def test_plain_gradient_descent_has_no_states():
    rank, _ = held(Plan(data=1), optimizer=Sgd())
    assert rank.by_kind().bytes[:, rank.by_kind().names.index('state')].max() == 0


@pytest.mark.parametrize(
    ('gradients', 'master', 'bytes_of_a_weight'), [(None, False, 2 + 2 + 8), (None, True, 16), ('fp32', True, 18)]
)
def test_bytes_of_a_weight_in_mixed_precision(gradients, master, bytes_of_a_weight):
    """16-bit weights and gradients, fp32 moments and master weights: 16 bytes; 18 with gradients in fp32.

    Rajbhandari et al. 2020, "ZeRO", section 3.1; Megatron-LM's docs on its distributed optimizer.
    """
    rank, _ = held(Plan(data=1), gradients=gradients, optimizer=Adam(master_weights=master))
    line = rank.by_kind()
    most = dict(zip(line.names, line.bytes.max(axis=0).tolist(), strict=True))
    assert sum(most[kind] for kind in ('parameter', 'gradient', 'state')) == bytes_of_a_weight * parameters(2)
