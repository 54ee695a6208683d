"""Megatron-LM's flags of batch, precision, optimizer and degrees that are read together."""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm
from typing import Any, Final, NamedTuple

from simpar.importing.flags import IDLE, NODE_SIZE, NOT_MODELLED, Assumed, Left, Says, Settings, Told, Wrong
from simpar.importing.megatron_model import is_checkpointed, least_expert_ranks

_OPTIMIZER: Final = 'workload.optimizer'


class Ranks(NamedTuple):
    """How many ranks a run has, how many devices of a node it takes (0: all), and what a reader should know of it."""

    total: int
    node: int
    notes: tuple[Told, ...] = ()


def ranks_of(flags: Settings) -> Ranks:
    """Ranks of the run, as launchers say them; where these are not known, those that the degrees need, and an error."""
    inner = max(1, flags.number('pipeline-model-parallel-size', 1)) * least_expert_ranks(flags)
    node, total = _count(flags, 'nproc-per-node'), _count(flags, 'worker-num')
    # torchrun has one node where it is known no number of them.
    nodes = _count(flags, 'nnodes') if 'nnodes' in flags else min(1, node)
    full = max(1, flags.number(NODE_SIZE, 8))
    notes: tuple[Told, ...] = ()
    if nodes and not node and not total:
        node = full
        what = f'{full} devices of each node, all that it has: --set nproc-per-node=N says another number'
        notes = (Assumed(what, of_cluster=True),)
    known = total or nodes * node
    if not known:
        return Ranks(inner, 0, (_unknown_ranks(flags, nodes, node),))
    if known % inner:
        ranks = inner if inner < full else lcm(inner, full)
        what = f'{ranks} devices: the file has {known}, which do not divide into the {inner} of its degrees'
        return Ranks(ranks, 0, (Assumed(what, of_cluster=True),))
    return Ranks(known, node, notes)


def _count(flags: Settings, name: str) -> int:
    """A number of nodes or devices; 0 where it is not known."""
    return max(0, flags.number(name, 0))


def _unknown_ranks(flags: Settings, nodes: int, node: int) -> Wrong:
    """What to write where nobody says how many devices there are."""
    missing = [name for name, known in (('nnodes', nodes), ('nproc-per-node', node)) if not known]
    asked = [flags.named[name].open for name in missing if name in flags]
    variables = [one for names in asked for one in names if not one.startswith('$')]
    given = ' '.join(f'--set {name}=8' for name in dict.fromkeys(variables or missing))
    said = next((name for name in missing if name in flags), '')
    what = f'{flags.named[said].shown} is not known' if said else 'the file does not say how many devices it runs on'
    return Wrong(said or 'nnodes', what, f'give the number, e.g. {given}')


def cluster(flags: Settings) -> Iterator[Told]:
    """Nodes and devices of each, and work queues."""
    ranks = ranks_of(flags)
    yield from ranks.notes
    # The engine makes nodes of them, which hold as many devices as the profile says.
    yield Says('ranks', ranks.total, flags.given('nnodes', 'nproc-per-node', 'worker-num'))
    if ranks.node:
        yield Says('node', ranks.node, flags.given('nproc-per-node'))
    queues = 'cuda-device-max-connections'
    told = flags.number(queues, 0)
    # CUDA takes no other number; what a variable holds that nobody assigns keeps no schedule from being written.
    if 1 <= told <= 32:
        yield Says('cluster.work_queues', told, (queues,))
    elif queues in flags:
        yield Left(queues, NOT_MODELLED, 'no number from 1 to 32; all queues of the device are taken')


def data_ranks(flags: Settings) -> int:
    """Data-parallel ranks, those that share experts among them."""
    dense = flags.number('tensor-model-parallel-size', 1) * flags.number('context-parallel-size', 1)
    return max(1, ranks_of(flags).total // max(1, dense * flags.number('pipeline-model-parallel-size', 1)))


def batch(flags: Settings) -> Iterator[Told]:
    """Samples of a step, and the micro-batches that they come in."""
    data, small = data_ranks(flags), flags.number('micro-batch-size', 0)
    full = flags.number('global-batch-size', 0)
    if not flags.given('num-layers', 'hidden-size'):
        yield Wrong('num-layers', 'missing: the command trains no model that its flags say', 'name a training script')
        return
    if not small and not full:
        yield Wrong('micro-batch-size', 'missing', 'give it, e.g. --set micro-batch-size=1 --set global-batch-size=256')
        return
    if not full:
        full = small * data
        yield Assumed(f'the global batch is micro-batch-size × {data} data ranks = {full}')
    small = small or max(1, full // data)
    if full % (small * data):
        whole = max(1, round(full / (small * data))) * small * data
        yield Assumed(
            f'a batch of {whole}: global-batch-size {full} is no multiple of micro-batch-size {small} × data {data}'
        )
        full = whole
    yield Says('workload.batch', full, flags.given('global-batch-size') or flags.given('micro-batch-size'))
    yield Says('plan.micro_batches', full // (small * data), flags.given('micro-batch-size', 'global-batch-size'))


def precision(flags: Settings) -> Iterator[Told]:
    """16 bits with master weights, or 32."""
    kind = 'bf16' if flags.on('bf16') else 'fp16' if flags.on('fp16') else 'fp32'
    yield Says('workload.precision', kind, flags.given('bf16', 'fp16'))
    sums = flags.given('accumulate-allreduce-grads-in-fp32', 'grad-reduce-in-bf16')
    if kind == 'bf16' and not flags.on('grad-reduce-in-bf16'):
        yield Says('workload.gradients', 'fp32', sums or ('bf16',))
    elif 'accumulate-allreduce-grads-in-fp32' in flags and kind != 'fp32':
        yield Says('workload.gradients', 'fp32', sums)
    else:
        yield Says('workload.gradients', kind, sums)
    if kind == 'fp16':
        scale = flags.real('loss-scale', 65536.0)
        yield Says('workload.loss_scale', scale, flags.given('loss-scale') or ('fp16',), 'dynamic in Megatron-LM')
    if 'fp8-format' in flags:
        yield from eight(flags)


def eight(flags: Settings) -> Iterator[Told]:
    """Products in 8 bits, of one scale a tensor."""
    form = flags.text('fp8-format')
    if form not in ('hybrid', 'e4m3'):
        form = 'hybrid'
    recipe = flags.text('fp8-recipe', 'delayed')
    note = '' if recipe in ('delayed', 'tensorwise') else f'scales by {recipe} are priced as one scale a tensor'
    yield Says('workload.fp8', form, flags.given('fp8-format', 'fp8-recipe'), note)
    if note:
        yield Left('fp8-recipe', NOT_MODELLED, note)


def optimizer(flags: Settings) -> Iterator[Told]:
    """Adam with decay apart, unless told."""
    kind = flags.text('optimizer', 'adam')
    known = {'adam': 'adamw', 'adamw': 'adamw', 'sgd': 'momentum', 'muon': 'muon', 'dist_muon': 'muon'}
    name = known.get(kind, 'adamw')
    if kind not in known:
        yield Left('optimizer', NOT_MODELLED, f'{kind}; adamw is written')
    own: dict[str, tuple[str, Any]] = {'weight-decay': ('weight_decay', 0.01), 'lr': ('learning_rate', None)}
    if name == 'adamw':
        own |= {'adam-beta1': ('beta1', None), 'adam-beta2': ('beta2', None), 'adam-eps': ('epsilon', None)}
    elif name == 'momentum':
        own |= {'sgd-momentum': ('momentum', None)}
    for flag, (key, default) in own.items():
        if flag in flags or default is not None:
            yield Says(f'{_OPTIMIZER}.{name}.{key}', flags.real(flag, default or 0.0), flags.given(flag))
    masters = flags.on('bf16') or flags.on('fp16')
    yield Says(f'{_OPTIMIZER}.{name}.master_weights', masters, flags.given('optimizer'))
    if 'clip-grad' not in flags:
        yield Says('workload.clip_norm', 1.0)


def parallel(flags: Settings) -> Iterator[Told]:
    """Sequence, context and expert parallelism."""
    tensor = flags.number('tensor-model-parallel-size', 1)
    if flags.on('sequence-parallel') and tensor > 1:
        yield Says('plan.sequence_parallel', True, ('sequence-parallel',))
    elif 'sequence-parallel' in flags:
        yield Left('sequence-parallel', IDLE, 'with one tensor rank')
    if flags.number('context-parallel-size', 1) > 1:
        yield Says('plan.context', flags.number('context-parallel-size', 1), ('context-parallel-size',))
        kinds = {'p2p': 'ring', 'a2a': 'all_to_all', 'allgather': 'all_gather', 'all_gather': 'all_gather'}
        kind = flags.text('cp-comm-type', 'p2p')
        yield Says('plan.context_kind', kinds.get(kind, 'ring'), flags.given('cp-comm-type'))
        if kind not in kinds:
            yield Left('cp-comm-type', NOT_MODELLED, f'{kind}; ring is written')
    else:
        for name in flags.given('context-parallel-size', 'cp-comm-type'):
            yield Left(name, IDLE, 'one context rank')
    yield from expert(flags)
    if flags.on('tp-comm-overlap'):
        if tensor > 1 and flags.on('sequence-parallel'):
            yield Says('plan.tiles', tensor, ('tp-comm-overlap',), 'a ring has as many parts as ranks')
        else:
            yield Left('tp-comm-overlap', IDLE, 'without sequence-parallel')


def expert(flags: Settings) -> Iterator[Told]:
    """Expert parallelism, of a model that has experts."""
    degree = flags.number('expert-model-parallel-size', 1)
    if degree > 1 and flags.number('num-experts', 0):
        kind = flags.text('moe-token-dispatcher-type', 'alltoall')
        by = flags.given('expert-model-parallel-size', *(['moe-token-dispatcher-type'] if kind == 'alltoall' else []))
        yield Says('plan.expert', degree, by)
        if kind != 'alltoall':
            yield Left('moe-token-dispatcher-type', NOT_MODELLED, f'{kind}; experts exchange tokens by all-to-all')
        return
    for name in flags.given('expert-model-parallel-size', 'moe-token-dispatcher-type'):
        yield Left(name, IDLE, 'one expert rank')


def pipeline(flags: Settings) -> Iterator[Told]:
    """The order of a pipeline, and layers of its stages."""
    ranks, layers = flags.number('pipeline-model-parallel-size', 1), flags.number('num-layers', 0)
    names = ('num-layers-per-virtual-pipeline-stage', 'num-virtual-stages-per-pipeline-rank')
    if ranks < 2:
        for name in flags.given(*names, 'decoder-first-pipeline-num-layers', 'decoder-last-pipeline-num-layers'):
            yield Left(name, IDLE, 'one pipeline rank')
        return
    each = flags.number(names[0], 0)
    chunks = flags.number(names[1], 1) if not each else max(1, layers // (ranks * each))
    if chunks > 1:
        yield Says('plan.order', 'interleaved-1f1b', flags.given(*names))
        yield Says('plan.chunks', chunks, flags.given(*names))
    by = flags.given('no-overlap-p2p-communication') or ('pipeline-model-parallel-size',)
    if chunks == 1 or flags.on('no-overlap-p2p-communication'):
        yield Says('plan.exchange', 'fused', by, 'sends and receives between two computations are one')
    else:
        # NVIDIA/Megatron-LM d98e8a64dd, megatron/training/arguments.py, line 3118: overlap_p2p_comm is on with virtual
        # stages; core/pipeline_parallel/schedules.py, line 1747 on: each message is issued behind a computation, and so
        # waits for it on the device.
        yield Says('plan.exchange', 'separate', by, 'messages go on beside computation')
        yield Says('plan.receive', 'late', by, 'posted behind a computation')
    if not flags.given('use-megatron-fsdp', 'use-torch-fsdp2'):
        # The same, training.py, line 2508, and core/distributed/distributed_data_parallel.py, line 170: buckets cut the
        # first chunk of the first rank alone.
        yield Says('plan.fusion', 'stage', ('pipeline-model-parallel-size',), 'each chunk has one bucket')
    yield from uneven(flags, ranks, chunks, layers)


def uneven(flags: Settings, ranks: int, chunks: int, layers: int) -> Iterator[Told]:
    """First and last stages of their own size."""
    first, last = (flags.number(f'decoder-{end}-pipeline-num-layers', 0) for end in ('first', 'last'))
    by = flags.given('decoder-first-pipeline-num-layers', 'decoder-last-pipeline-num-layers')
    if not first and not last:
        return
    middle = ranks - bool(first) - bool(last)
    left = layers - first - last
    if chunks > 1 or middle < 1 or left % middle:
        for name in by:
            yield Left(name, NOT_MODELLED, 'with these numbers of layers, ranks and chunks')
        return
    stages = [first] * bool(first) + [left // middle] * middle + [last] * bool(last)
    yield Says('plan.stages', stages, by)


def sharding(flags: Settings) -> Iterator[Told]:
    """What data ranks share, and what their messages hide under."""
    levels = {'optim': 1, 'optim_grads': 2, 'optim_grads_params': 3, 'no_shard': 0}
    fsdp = flags.given('use-megatron-fsdp', 'use-torch-fsdp2')
    zero = 1 if flags.on('use-distributed-optimizer') else 0
    by = flags.given('use-distributed-optimizer')
    if fsdp:
        strategy = flags.text('data-parallel-sharding-strategy', 'optim_grads_params')
        zero, by = levels.get(strategy, 3), (*by, *fsdp, *flags.given('data-parallel-sharding-strategy'))
    elif 'data-parallel-sharding-strategy' in flags:
        yield Left('data-parallel-sharding-strategy', IDLE, 'without use-megatron-fsdp')
    if zero:
        yield Says('plan.zero', zero, by)
    if zero < 3:
        how = 'overlapped' if flags.on('overlap-grad-reduce') else 'end'
        yield Says('plan.reduce_gradients', how, flags.given('overlap-grad-reduce'))
    elif 'overlap-grad-reduce' in flags:
        yield Says('plan.reduce_gradients', 'overlapped', ('overlap-grad-reduce',))
    if 'overlap-param-gather' in flags and not zero:
        yield Left('overlap-param-gather', IDLE, 'without use-distributed-optimizer')
    elif 'overlap-param-gather' in flags:
        if zero == 3:
            yield Says('plan.prefetch', 1, ('overlap-param-gather',))
        else:
            told = 'under the forward of the next step'
            yield Says('plan.gather', 'after-update', ('overlap-param-gather',), told)
    elif 0 < zero < 3:
        yield Assumed('weights are gathered under the next forward, as with --overlap-param-gather')


def recompute(flags: Settings) -> Iterator[Told]:
    """What the backward makes again."""
    kind = flags.text('recompute-granularity')
    if flags.on('recompute-activations') and not kind:
        kind = 'full' if is_checkpointed(flags) else 'selective'
    by = flags.given('recompute-granularity', 'recompute-activations')
    rest = flags.given('recompute-method', 'recompute-num-layers', 'recompute-modules')
    if kind == 'full':
        yield from recompute_full(flags, by)
    elif kind == 'selective':
        modules = (
            flags.named['recompute-modules'].shown.replace(',', ' ').split() if 'recompute-modules' in flags else []
        )
        yield Says('plan.recompute', 'selective', (*by, *flags.given('recompute-modules')))
        if any(one != 'core_attn' for one in modules):
            others = ', '.join(one for one in modules if one != 'core_attn')
            yield Left('recompute-modules', NOT_MODELLED, f'{others}; attention alone is recomputed')
        for name in rest[:2]:
            if name != 'recompute-modules':
                yield Left(name, IDLE, 'with recompute-granularity selective')
    else:
        for name in rest:
            yield Left(name, IDLE, 'without recompute-granularity')


def recompute_full(flags: Settings, by: tuple[str, ...]) -> Iterator[Told]:
    """All layers, or with ``block`` the first of each stage."""
    count, layers = flags.number('recompute-num-layers', 1), flags.number('num-layers', 0)
    by = (*by, *flags.given('recompute-method', 'recompute-num-layers'))
    pipeline = flags.number('pipeline-model-parallel-size', 1)
    share = layers // max(1, pipeline)
    if 'recompute-modules' in flags:
        yield Left('recompute-modules', IDLE, 'with recompute-granularity full')
    if flags.text('recompute-method', 'uniform') == 'block' and count < share:
        if layers % pipeline or 'num-layers-per-virtual-pipeline-stage' in flags:
            yield Left('recompute-num-layers', NOT_MODELLED, 'blocks of uneven or interleaved stages; all layers are')
            yield Says('plan.recompute', 'full', by)
            return
        first = [stage * share + layer for stage in range(pipeline) for layer in range(count)]
        yield Says('plan.recompute', [f'layer{layer}.*' for layer in first] or 'none', by)
        return
    yield Says('plan.recompute', 'full', by)
    if flags.text('recompute-method', 'uniform') == 'uniform' and count > 1:
        yield Left('recompute-num-layers', NOT_MODELLED, f'{count} layers as one; each keeps its input')


RULES: Final = (cluster, batch, precision, optimizer, parallel, pipeline, sharding, recompute)
