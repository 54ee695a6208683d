"""A GPT-kind ``transformer:`` on the tape, cut as Megatron-LM cuts it (Shoeybi et al. 2019; Korthikanti et al. 2022).

Queries, keys, values and the first feed-forward product are cut by column, the projection and the second by row,
embedding and head by vocabulary. With sequence parallelism norms and residuals are cut along the sequence. What does
not divide stays whole.
"""

from __future__ import annotations

from dataclasses import dataclass

from simpar.lower import attention, loss, rules
from simpar.lower.dropout import Dropout, drop, dropout_of
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
    dropout = dropout_of(tape, model.dropout, shape[0])
    x = drop(tape, 'position', x, dropout)
    cut_heads = _divides(tape, model.key_value_heads, 'attention (its groups of heads)')
    cut_ffn = _divides(tape, model.ffn_width, 'the feed-forward (its width)')
    for layer, stage in enumerate(stages):
        x = go_to(tape, x, stage)
        block = _Block(tape, model, f'layer{layer}', dropout, sequence_parallel)
        x = block.feed_forward(block.attention(x, cut=cut_heads), cut=cut_ffn)
    x = rules.norm(tape, 'norm', go_to(tape, x, tape.mesh.stages - 1))
    logits = rules.matmul(
        tape, 'head', x, (model.vocab,), (model.hidden,), deviation=model.weight_deviation, bias=False,
        cut='column' if cut_vocab else 'whole', weight='embedding.weight' if model.tied else '',
    )  # fmt: skip
    labels = tape.input('labels', shape, 'int64', f'tokens:{model.vocab}')
    loss.cross_entropy(tape, logits, labels, summed=summed, loss_scale=workload.loss_scale)
    tape.backpropagate()


def _divides(tape: Tape, size: int, what: str) -> bool:
    degree = tape.mesh.tensor
    if degree > 1 and size % degree:
        tape.notes.append(f'{what} stays whole on every tensor rank: {size} is not divisible by tensor {degree}')
    return degree > 1 and size % degree == 0


def _residual_layout(tape: Tape, x: Value, *, sequence_parallel: bool) -> Value:
    """A sum in the layout of the residual stream: cut along the sequence, or whole."""
    return tape.scattered(x, 1) if sequence_parallel else tape.whole(x)


@dataclass(frozen=True, slots=True)
class _Block:
    """One layer; ``name``, what its operators' names begin with."""

    tape: Tape
    model: Transformer
    name: str
    dropout: Dropout | None
    sequence_parallel: bool

    def attention(self, x: Value, *, cut: bool) -> Value:
        """x + what attention makes of it; ``cut`` by groups of heads."""
        model, name = self.model, self.name
        groups = model.key_value_heads
        heads = attention.Heads(groups, model.heads // groups, model.hidden // model.heads)
        normed = rules.norm(self.tape, f'{name}.norm1', x)
        outputs = (groups, heads.queries + 2, heads.head_dim)
        qkv = rules.matmul(self.tape, f'{name}.qkv', normed, outputs, (model.hidden,),
                           deviation=model.weight_deviation, cut='column' if cut else 'whole')  # fmt: skip
        form = attention.unfused if model.attention == 'unfused' else attention.flash
        y = form(self.tape, f'{name}.attention', qkv, heads, self.dropout)
        return self._project('proj', 'residual1', x, y, (groups, heads.queries, heads.head_dim), cut=cut)

    def feed_forward(self, x: Value, *, cut: bool) -> Value:
        """x + what the feed-forward makes of it; ``cut`` by width."""
        model, name = self.model, self.name
        normed = rules.norm(self.tape, f'{name}.norm2', x)
        y = rules.matmul(self.tape, f'{name}.fc1', normed, (model.ffn_width,), (model.hidden,),
                         deviation=model.weight_deviation, cut='column' if cut else 'local')  # fmt: skip
        y = rules.gelu(self.tape, f'{name}.gelu', y)
        return self._project('fc2', 'residual2', x, y, (model.ffn_width,), cut=cut)

    def _project(self, product: str, residual: str, x: Value, y: Value, inputs: tuple[int, ...], *, cut: bool) -> Value:
        """The row-cut product back to the hidden width, its sum, bias and residual."""
        name, model = f'{self.name}.{product}', self.model
        z = rules.matmul(self.tape, name, y, (model.hidden,), inputs, deviation=model.weight_deviation, bias=False,
                         cut='row' if cut else 'local')  # fmt: skip
        z = _residual_layout(self.tape, z, sequence_parallel=self.sequence_parallel)
        return rules.residual(self.tape, f'{self.name}.{residual}', x, z, bias_of=name, width=model.hidden,
                              dropout=self.dropout)  # fmt: skip
