"""Lines of MindSpore that say a plan: of 2.5 and later by ``AutoParallel``, of 2.3 by ``set_auto_parallel_context``.

Names and arguments are those of mindspore/parallel/auto_parallel.py of 2.10 and mindspore/context.py of 2.3.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from simpar.exporting.mindformers import SPEED_UP, passes_of
from simpar.exporting.settings import Said, Values, bytes_of, direct, plain

_MODES: Final = {
    'none': ('semi_auto', 'semi_auto_parallel', ''),
    'sharding-propagation': ('sharding_propagation', 'auto_parallel', 'sharding_propagation'),
    'double-recursive': ('recursive_programming', 'auto_parallel', 'recursive_programming'),
}
"""Of a search: the mode of AutoParallel; the mode and the search of set_auto_parallel_context."""
_LEVELS: Final = {1: 'level1', 2: 'level2', 3: 'level3'}
_ORDERS: Final = 'mindspore-2.10/'


def mindspore_lines(values: Values) -> list[Said]:
    """What calls of MindSpore say of a plan; ``part`` is the call."""
    return [*_own(values), *direct('mindspore', values, _facts(values)), *_shards(values)]


def _own(values: Values) -> Iterator[Said]:
    """What MindSpore does where nothing is said."""
    keys = ['plan.chunks'] if values.plan('chunks') in (0, 1) else []
    strategies = values.every.get('workload.network') or values.plan('strategies') or values.plan('layouts')
    if values.plan('tensor') == 1 or strategies:
        keys += ['plan.data', 'plan.tensor']
    yield Said('nothing', True, tuple(keys))


def _facts(values: Values) -> dict[str, Any]:
    """What rows of the table need, and values that they have: copies, mode, order, and optimizer parallelism.

    Of its levels 1 shards weights and states, 2 gradients too, and 3 gathers twice.
    """
    plan, stage, parts = values.plan, values.sharded, set(values.plan('shard'))
    order, chunks, twice = plan('order'), plan('chunks') or 1, plan('gather') == 'on-use-twice'
    name, group = order.removeprefix(_ORDERS), plan('shard_group')
    has_order = order.startswith(_ORDERS) or (order == '1f1b' and chunks == 1)
    level = plan('hsdp') if plan('hsdp') != 'off' else _LEVELS[3 if twice else 2 if 'gradients' in parts else 1]
    sharded, fusion, stages = plan('accumulate') == 'sharded', plan('fusion'), set(plan('recompute_stages'))
    return {
        'copies': plan('copies') if plan('copies') > 1 else 0,
        'sum': plan('copies_loss') == 'sum',
        'steps': plan('micro_batches') if plan('micro_batches') > 1 else 0,
        'search': plan('search') in _MODES,
        # Who gives strategies.
        'mode': _MODES.get(plan('search'), _MODES['sharding-propagation'])[0],
        'dataset': 'full_batch' if plan('dataset') == 'full-batch' else 'data_parallel',
        'passes': passes_of(values) and SPEED_UP,
        'pipeline': plan('pipeline') if plan('pipeline') > 1 else 0,
        'order': has_order and name,
        'interleaved': chunks > 1 or name != '1f1b',
        'shards': stage,
        'group': -1 if group in (0, plan('data')) else group,
        'threshold': stage and plain(bytes_of(plan('shard_threshold')) / 1024),
        'level': level,
        'whole': 'weights' in parts and twice == (level == 'level3'),
        'sharded': sharded,
        # AutoParallel shards the sums of gradients by the level; 2.3 has a switch.
        'by level': sharded == (level != 'level1') or plan('micro_batches') == 1,
        # What MindSpore does where nothing is said.
        'all in one': fusion == 'all',
        'comm fusion': _comm_fusion(fusion),
        'marks': fusion if fusion in ('layer', 'none', 'ids') else '',
        # Layers of all stages or of none.
        'full': plan('recompute') == 'full' and stages in (set(), set(range(plan('pipeline')))),
        'again': plan('recompute_communication'),
        'not again': plan('recompute') in ('none', (), []),
    }


def _comm_fusion(fusion: Any) -> dict[str, Any]:
    """Messages of gradients by size, or by index, as MindSpore writes them; nothing where neither says them."""
    if fusion == 'auto' or isinstance(fusion, (list, tuple)):
        return {'allreduce': {'mode': 'auto', 'config': None} if fusion == 'auto' else
                {'mode': 'index', 'config': list(fusion)}}  # fmt: skip
    size, modes = bytes_of(fusion), ('allreduce', 'allgather', 'reducescatter')
    return {one: {'mode': 'size', 'config': int(size // 2**20)} for one in modes} if size else {}


def _shards(values: Values) -> Iterator[Said]:
    """Strategies of operators, by their names; of a chain of dense layers those that its degrees come to."""
    network = values.every.get('workload.network')
    layers = network['layers'] if isinstance(network, dict) else network
    strategies = values.every.get('plan.strategies') or {}
    for pattern, strategy in strategies.items():
        yield Said(pattern, tuples(strategy), ('plan.strategies',), 'shard')
    if not isinstance(layers, list):
        return
    own = [(layer, kind, keys) for layer in layers for kind, keys in layer.items()]
    listed = [(keys.get('name') or kind, keys['strategy']) for _, kind, keys in own if keys.get('strategy')]
    for name, strategy in listed:
        yield Said(name, tuples(strategy), ('workload.network',), 'shard')
    if not listed and not strategies and values.plan('search') == 'none':
        yield from _of_degrees(own, values)


def _of_degrees(own: list[tuple[Any, str, Any]], values: Values) -> Iterator[Said]:
    """Products by outputs, or by inputs where these are sharded already, as degrees shard them."""
    data, tensor = values.plan('data'), values.plan('tensor')
    keys, is_sharded = ('plan.data', 'plan.tensor'), False
    kinds = {'flatten', 'dense', 'relu', 'gelu', 'tanh', 'sigmoid'}
    if any(kind not in kinds for _, kind, _ in own):
        return
    for place, (_, kind, of_layer) in enumerate(own):
        name = of_layer.get('name') or f'{kind}{sum(other == kind for _, other, _ in own[:place])}'
        if kind == 'dense':
            inputs, outputs = of_layer['in'], of_layer['out']
            by_inputs = is_sharded and inputs % tensor == 0
            is_sharded = not by_inputs and outputs % tensor == 0
            split = ((data, tensor), (1, tensor)) if by_inputs else ((data, 1), (tensor if is_sharded else 1, 1))
            yield Said(f'{name}.matmul', split, keys, 'shard')
            if of_layer.get('bias', True):
                share = tensor if is_sharded else 1
                yield Said(f'{name}.bias_add', ((data, share), (share,)), keys, 'shard')
        elif kind != 'flatten':
            yield Said(f'{name}.{kind}', ((data, tensor if is_sharded else 1),), keys, 'shard')


def tuples(value: Any) -> Any:
    """Lists as MindSpore writes strategies."""
    return tuple(map(tuples, value)) if isinstance(value, (list, tuple)) else value


# the text


def mindspore_text(said: Iterable[Said], values: Values, head: tuple[str, ...]) -> str:
    """A module with a function that wraps a network, and one that sets the context of MindSpore 2.3."""
    calls: dict[str, dict[str, Any]] = {}
    for one in said:
        calls.setdefault(one.part, {})[one.name] = one.value
    lines = [*(f'# {line}'.rstrip() for line in head), *_IMPORTS, '']
    lines += ['', 'def parallel(net):', '    """Wrap a network with its loss, of MindSpore 2.6 and later."""']
    lines += [f'    net.{name}.shard({strategy!r})' for name, strategy in calls.get('shard', {}).items()]
    lines += [f'    # {one}' for one in _marks(calls)]
    for call, words in (('MicroBatchInterleaved', 'interleave_num'), ('Pipeline', 'micro_size')):
        lines += [f'    net = {call}(net, {calls[call][words]})'] if call in calls else []
    if 'GradAccumulation' in calls:
        lines.append(f'    net = GradAccumulation(net, {calls["GradAccumulation"]["micro_size"]})')
    lines.append(f'    net = AutoParallel(net, parallel_mode={calls["AutoParallel"]["parallel_mode"]!r})')
    for call in ('pipeline', 'hsdp', 'comm_fusion', 'dataset_strategy', 'transformer_opt'):
        if call in calls:
            words = ', '.join(f'{name}={value!r}' for name, value in calls[call].items())
            lines.append(f'    net.{call}({words})')
    lines += [
        '    return net',
        '',
        '',
        'def set_context():',
        '    """The same of MindSpore 2.3, before the network."""',
    ]
    lines.append('    ms.set_auto_parallel_context(')
    lines += [f'        {name}={value!r},' for name, value in _of_2_3(calls, values)]
    lines.append('    )')
    if 'transformer_opt' in calls:
        lines.append(f"    ms.set_context(ascend_config={{'parallel_speed_up_json_path': {SPEED_UP!r}}})")
    return '\n'.join(lines) + '\n'


_IMPORTS: Final = (
    'import mindspore as ms',
    'from mindspore.parallel.auto_parallel import AutoParallel',
    'from mindspore.parallel.nn import GradAccumulation, MicroBatchInterleaved, Pipeline',
)


def _marks(calls: dict[str, dict[str, Any]]) -> Iterator[str]:
    """How layers are marked for messages of their own."""
    kind = calls.get('marks', {}).get('set_comm_fusion')
    if kind == 'layer':
        yield 'A message for each layer: for i, layer in enumerate(layers): layer.set_comm_fusion(i + 1)'
    elif kind == 'none':
        yield 'A message for each gradient: layer.set_comm_fusion(0)'
    elif kind == 'ids':
        yield 'A message for each mark: layer.set_comm_fusion(id), as comm_fusion of each layer says'
    if 'recompute' in calls.get('marks', {}):
        word = calls['marks']['recompute']
        yield f'Layers are made again: for layer in layers: layer.recompute(mp_comm_recompute={word})'


def _of_2_3(calls: dict[str, dict[str, Any]], values: Values) -> Iterator[tuple[str, Any]]:
    """What ``set_auto_parallel_context`` is told."""
    _, mode, search = _MODES.get(values.plan('search'), _MODES['sharding-propagation'])
    yield 'parallel_mode', mode
    if search:
        yield 'search_mode', search
    yield 'device_num', values.ranks
    yield 'dataset_strategy', calls['dataset_strategy']['config']
    if 'pipeline' in calls:
        yield 'pipeline_stages', calls['pipeline']['stages']
        if calls['pipeline']['interleave']:
            scheduler = calls['pipeline']['scheduler']
            yield 'pipeline_config', {'pipeline_interleave': True, 'pipeline_scheduler': scheduler}
    if 'hsdp' in calls:
        own = calls['hsdp']
        yield 'enable_parallel_optimizer', True
        yield (
            'parallel_optimizer_config',
            {
                'parallel_optimizer_threshold': own['threshold'],
                'optimizer_weight_shard_size': own['shard_size'],
                'optimizer_level': own['optimizer_level'],
                'gradient_accumulation_shard': calls['2.3']['gradient_accumulation_shard'],
            },
        )
    if 'comm_fusion' in calls:
        yield 'comm_fusion', calls['comm_fusion']['config']
    if values.plan('all_to_all'):
        yield 'enable_alltoall', True
