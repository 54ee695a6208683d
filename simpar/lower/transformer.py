"""A GPT-kind ``transformer:`` on the tape, cut as Megatron-LM cuts it (Shoeybi et al. 2019; Korthikanti et al. 2022).

Queries, keys, values and the first feed-forward product are cut by column, the projection and the second by row,
embedding and head by vocabulary. With sequence parallelism norms and residuals are cut along the sequence. What does
not divide stays whole.
"""

from __future__ import annotations

from simpar.lower import loss, rules
from simpar.lower.stages import go_to
from simpar.lower.tape import Tape
from simpar.lower.value import Value
from simpar.workload import Transformer, Workload


def transformer(
    tape: Tape,
    workload: Workload,
    model: Transformer,
    *,
    stages: tuple[int, ...],
    sequence_parallel: bool,
    summed: bool,
) -> None:
    """Emit forward, loss and backward of one copy of a micro-batch.

    Arguments: ``stages``, the stage of each layer; the embedding is in the first stage, norm and head in the last.
    """
    shape = (workload.batch // tape.mesh.micro_batches, model.sequence)
    tokens = tape.input('tokens', shape, 'int64', f'tokens:{model.vocab}')
    sequence_parallel = sequence_parallel and _divides(tape, model.sequence, 'the sequence of norms and residuals')
    cut_vocab = _divides(tape, model.vocab, 'the vocabulary (embedding and head)')
    x = rules.embedding(tape, 'embedding', tokens, model.vocab, model.hidden, deviation=model.weight_deviation,
                        cut=cut_vocab)  # fmt: skip
    x = _residual_layout(tape, x, sequence_parallel=sequence_parallel)
    x = rules.position(tape, 'position', x, deviation=model.weight_deviation)
    cut_heads = _divides(tape, model.key_value_heads, 'attention (its groups of heads)')
    cut_ffn = _divides(tape, model.ffn_width, 'the feed-forward (its width)')
    for layer, stage in enumerate(stages):
        x = go_to(tape, x, stage)
        x = _attention(tape, model, f'layer{layer}', x, cut=cut_heads, sequence_parallel=sequence_parallel)
        x = _feed_forward(tape, model, f'layer{layer}', x, cut=cut_ffn, sequence_parallel=sequence_parallel)
    x = rules.norm(tape, 'norm', go_to(tape, x, tape.mesh.stages - 1))
    logits = rules.matmul(
        tape, 'head', x, (model.vocab,), (model.hidden,), deviation=model.weight_deviation, bias=False,
        cut='column' if cut_vocab else 'whole', weight='embedding.weight' if model.tied else '',
    )  # fmt: skip
    labels = tape.input('labels', shape, 'int64', f'tokens:{model.vocab}')
    loss.cross_entropy(tape, logits, labels, summed=summed)
    tape.backpropagate()


def _divides(tape: Tape, size: int, what: str) -> bool:
    degree = tape.mesh.tensor
    if degree > 1 and size % degree:
        tape.notes.append(f'{what} stays whole on every tensor rank: {size} is not divisible by tensor {degree}')
    return degree > 1 and size % degree == 0


def _residual_layout(tape: Tape, x: Value, *, sequence_parallel: bool) -> Value:
    """A sum in the layout of the residual stream: cut along the sequence, or whole."""
    return tape.scattered(x, 1) if sequence_parallel else tape.whole(x)


def _attention(tape: Tape, model: Transformer, name: str, x: Value, *, cut: bool, sequence_parallel: bool) -> Value:
    groups = model.key_value_heads
    queries, head_dim = model.heads // groups, model.hidden // model.heads
    deviation = model.weight_deviation
    normed = rules.norm(tape, f'{name}.norm1', x)
    qkv = rules.matmul(tape, f'{name}.qkv', normed, (groups, queries + 2, head_dim), (model.hidden,),
                       deviation=deviation, cut='column' if cut else 'whole')  # fmt: skip
    y = rules.attention(tape, f'{name}.attention', qkv, groups, queries, head_dim)
    return _project(tape, f'{name}.proj', f'{name}.residual1', x, y, (groups, queries, head_dim), model,
                    cut=cut, sequence_parallel=sequence_parallel)  # fmt: skip


def _feed_forward(tape: Tape, model: Transformer, name: str, x: Value, *, cut: bool, sequence_parallel: bool) -> Value:
    normed = rules.norm(tape, f'{name}.norm2', x)
    y = rules.matmul(tape, f'{name}.fc1', normed, (model.ffn_width,), (model.hidden,),
                     deviation=model.weight_deviation, cut='column' if cut else 'local')  # fmt: skip
    y = rules.gelu(tape, f'{name}.gelu', y)
    return _project(tape, f'{name}.fc2', f'{name}.residual2', x, y, (model.ffn_width,), model,
                    cut=cut, sequence_parallel=sequence_parallel)  # fmt: skip


def _project(
    tape: Tape,
    name: str,
    residual: str,
    x: Value,
    y: Value,
    inputs: tuple[int, ...],
    model: Transformer,
    *,
    cut: bool,
    sequence_parallel: bool,
) -> Value:
    """The row-cut product back to the hidden width, its sum, bias and residual."""
    z = rules.matmul(tape, name, y, (model.hidden,), inputs, deviation=model.weight_deviation, bias=False,
                     cut='row' if cut else 'local')  # fmt: skip
    z = _residual_layout(tape, z, sequence_parallel=sequence_parallel)
    return rules.residual(tape, residual, x, z, bias_of=name, width=model.hidden)
