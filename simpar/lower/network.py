"""A ``network:`` on the tape: dense layers alternate column and row cuts; a cut that does not divide stays whole,
with a note."""

from __future__ import annotations

from simpar.lower import loss, rules
from simpar.lower.stages import go_to
from simpar.lower.tape import Tape
from simpar.lower.value import Value
from simpar.model import Dense, Network, Relu, layer_names
from simpar.workload import Workload


def network(tape: Tape, workload: Workload, model: Network, *, stages: tuple[int, ...], summed: bool) -> None:
    """Emit forward, loss and backward of one copy of a micro-batch.

    Arguments: ``stages``, the stage of each layer.
    """
    batch = workload.batch // tape.mesh.micro_batches
    dense = [layer for layer in model.layers if isinstance(layer, Dense)]
    drawn = 'mnist' if workload.data == 'mnist' else ''
    x = tape.input('x', (batch, dense[0].inputs), tape.dtype, drawn or 'normal:1')
    x = go_to(tape, _layers(tape, model, x, stages), tape.mesh.stages - 1)
    classes = dense[-1].outputs
    if workload.loss != 'cross-entropy':
        target = tape.input('target', (batch, classes), tape.dtype, 'normal:1')
        loss.difference(tape, workload.loss, tape.whole(x), target, summed=summed, loss_scale=workload.loss_scale)
    else:
        labels = tape.input('labels', (batch,), 'int64', drawn or f'classes:{classes}')
        logits = tape.whole(x) if x.partial else x
        loss.cross_entropy(tape, logits, labels, summed=summed, loss_scale=workload.loss_scale)
    tape.backpropagate()


def _layers(tape: Tape, model: Network, x: Value, stages: tuple[int, ...]) -> Value:
    for name, layer, stage in zip(layer_names(model), model.layers, stages, strict=True):
        x = go_to(tape, x, stage)
        if isinstance(layer, Dense):
            x = _dense(tape, layer, name, x, model.weight_deviation)
        elif isinstance(layer, Relu):
            x = rules.relu(tape, name, tape.whole(x) if x.partial else x)
    return x


def _dense(tape: Tape, layer: Dense, name: str, x: Value, deviation: float) -> Value:
    degree = tape.mesh.tensor
    cut = 'whole' if degree == 1 else 'row' if x.cut is not None else 'column'
    if cut == 'column' and layer.outputs % degree:
        cut = 'whole'
        tape.notes.append(
            f'{name} stays whole on every tensor rank: its {layer.outputs} outputs are not divisible by tensor {degree}'
        )
    y = rules.matmul(tape, name, x, (layer.outputs,), (layer.inputs,), deviation=deviation, bias=layer.bias, cut=cut)
    if cut != 'row':
        return y
    y = tape.whole(y)
    return rules.bias(tape, name, y, (layer.outputs,)) if layer.bias else y
