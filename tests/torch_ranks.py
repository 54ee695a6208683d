"""Ranks of pipelines that torch.distributed.pipelining runs: begun by a test.

The folder holds the jobs; what the stages of each rank computed, and in what order, is written there.
"""

import torch
from rank_jobs import fork
from tables import load_table
from torch.nn import functional

from executor.draws import batch_of, draw
from simpar.model import Dense

CLASSES = load_table(__file__, 'CLASSES')


def model(workload, seed):
    """One module a dense layer, the relu behind it included; weights as every machine draws them."""
    modules = []
    for layer in workload.model.layers:
        if isinstance(layer, Dense):
            name = f'dense{len(modules)}'
            linear = torch.nn.Linear(layer.inputs, layer.outputs, dtype=torch.float64)
            deviation = workload.model.init_std
            weight = draw(f'normal:{deviation}', linear.weight.shape, torch.float64, seed, f'{name}.weight')
            linear.weight.data, linear.bias.data = weight, torch.zeros_like(linear.bias)
            modules.append(torch.nn.Sequential(linear))
        else:
            modules[-1].append(torch.nn.ReLU())
    return modules


def recorded(stage, done):
    """The stage, which notes what it is told to do."""
    forward, backward, weight = stage.forward_one_chunk, stage.backward_one_chunk, stage.backward_weight_one_chunk

    def note(kind, number):
        done.append(f'{stage.stage_index}{kind}{number}')

    def forward_one_chunk(number, *rest, **named):
        note('F', number)
        return forward(number, *rest, **named)

    def backward_one_chunk(number, loss=None, full_backward=True, last_backward=False):
        note('B' if full_backward else 'I', number)
        return backward(number, loss=loss, full_backward=full_backward, last_backward=last_backward)

    def backward_weight_one_chunk(number, last_backward=False):
        note('W', number)
        return weight(number, last_backward=last_backward)

    stage.forward_one_chunk, stage.backward_one_chunk = forward_one_chunk, backward_one_chunk
    stage.backward_weight_one_chunk = backward_weight_one_chunk
    return stage


def scheduled(job, stages, loss, folder):
    """torch's own schedule of this name, or its runtime with an order that we have written."""
    from torch.distributed.pipelining import schedules

    if job['order'] in CLASSES:
        kind = getattr(schedules, CLASSES[job['order']])
        one = not issubclass(kind, schedules.PipelineScheduleMulti)
        return kind(stages[0] if one else stages, job['micro_batches'], loss_fn=loss)
    runtime = schedules._PipelineScheduleRuntime(stages, job['micro_batches'], loss_fn=loss)
    runtime._load_csv(str(folder / job['csv']))
    return runtime


def run(job, rank, folder):
    from torch.distributed.pipelining import PipelineStage

    workload, seed, placement = job['workload'], job['seed'], job['placement']
    modules, done, losses = model(workload, seed), [], []
    mine = [stage for stage, holder in enumerate(placement) if holder == rank]
    first, held = 0, {}
    for stage, count in enumerate(job['counts']):
        held[stage] = torch.nn.Sequential(*modules[first : first + count])
        first += count
    device = torch.device('cpu')
    stages = [recorded(PipelineStage(held[stage], stage, len(placement), device), done) for stage in mine]
    loss = functional.mse_loss if workload.loss == 'mse' else functional.cross_entropy
    schedule = scheduled(job, stages, loss, folder)
    dense = [layer for layer in workload.model.layers if isinstance(layer, Dense)]
    x = batch_of('x', 'normal:1', (workload.batch, dense[0].inputs), torch.float64, seed, 0)
    named = ('target', 'normal:1', (workload.batch, dense[-1].outputs), torch.float64)
    if workload.loss != 'mse':
        named = ('labels', f'classes:{dense[-1].outputs}', (workload.batch,), torch.int64)
    given = {'target': batch_of(*named, seed, 0), 'losses': losses} if len(placement) - 1 in mine else {}
    schedule.step(*[x] * (0 in mine), **given)
    return {
        'done': done,
        'loss': float(sum(losses).detach()) / job['micro_batches'] if losses else None,
        'gradients': {
            f'd:dense{index}.{name}': parameter.grad
            for index, module in enumerate(modules)
            if any(module in held[stage] for stage in mine)
            for name, parameter in module[0].named_parameters()
        },
    }


def main(world, folder):
    return fork(lambda job, rank: run(job, rank, folder), world, folder)
