"""What a script of MindSpore says of a plan: ``AutoParallel``, ``set_auto_parallel_context``, cells that cut a batch.

Names and defaults are those of mindspore.set_auto_parallel_context of 2.3 and of mindspore.parallel of 2.10.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

from simpar import files
from simpar.importing import findings, mapping, mindspore_network, settings
from simpar.importing.python_script import UNKNOWN, Cell, Thing, last, said_of

MODES: Final = mindspore_network.words('mode')
SEARCHES: Final = mindspore_network.words('search')
WITHOUT_EFFECT: Final = mindspore_network.words('context')
"""Settings of a context that do not change what a step does."""
OF_FILES: Final = mindspore_network.words('of files')
"""Methods of AutoParallel that are of files and printed norms."""
WRAPPERS: Final = mindspore_network.words('wrapper')
"""Cells around a network that cut its batch: the key that says into how many, and their arguments."""
_METHODS: Final = mindspore_network.words('method')
"""Methods of AutoParallel: their arguments in order, and what the older context calls each in its dict."""
_SHARD_KEYS: Final = mindspore_network.words('shard key').keys()
_PASSES: Final = settings.FOLDER / 'mindformers.csv'
_BY_HAND: Final = 'leave it out, or write its key by --set plan.…'


@dataclass(eq=False)
class Parallel(mindspore_network.Network):
    """What a script says of a plan.

    Arguments:
        context: settings and their lines. wrapped: cells around the network that cut its batch.
        matrix: axes of the device matrix that layouts name, the outermost first.
        full: whether each rank reads the whole batch. reduces: whether the script sums gradients itself.
        is_bare: whether there are lines of a plan alone, without a network. strategies: of operators of such a network.
    """

    context: dict[str, tuple[Any, int]] = field(default_factory=dict)
    wrapped: dict[str, tuple[Any, int]] = field(default_factory=dict)
    lines: list[mapping.Line] = field(default_factory=list)
    matrix: dict[str, int] = field(default_factory=dict)
    full: bool = False
    reduces: bool = False
    is_bare: bool = False
    strategies: dict[str, Any] = field(default_factory=dict)
    given: dict[str, str] = field(default_factory=dict)

    def line(self, name: str, value: Any, line: int, keys: tuple[str, ...]) -> None:
        self.lines.append(mapping.Line(name, str(value), self.place(line), findings.MAPPED, keys))

    def gap(self, name: str, value: Any, line: int, note: str) -> None:
        """What goes with the schedule as something that no prediction knows of."""
        self.lines.append(mapping.Line(name, last(value), self.place(line), findings.NOT_MODELLED, (), note))

    def contexts(self, line: int, named: Mapping[str, Any]) -> None:
        """Settings of a context; the last one counts."""
        self.context |= {key: (value, line) for key, value in named.items()}
        self.changes += any(key not in WITHOUT_EFFECT for key in named)

    def wrap(self, name: str, line: int, values: list[Any], named: dict[str, Any]) -> Any:
        """A cell around a network that cuts its batch."""
        order = WRAPPERS[name].order
        said = said_of(order, values, named)
        inner = said.pop('network', UNKNOWN)
        number = said.pop(order[1], 2 if name == 'MicroBatchInterleaved' else UNKNOWN)
        stages = said.pop('stage_config', None)
        if name in self.wrapped:
            self.refuse(line, f'{name} is called twice', 'write one of them')
        self.changes += 1
        self.wrapped[name] = (number, line)
        for key, value in said.items():
            if value is not None:
                self.refuse(line, f'{key} of {name} is not read', _BY_HAND)
        if isinstance(stages, dict) and isinstance(inner, Cell):
            for path, stage in stages.items():
                self.staged(inner, str(path), stage, line)
        elif stages is not None:
            self.refuse(
                line, f'which layers the stages of {name} are is not known', 'write stage_config as a dict here'
            )
        return inner

    def staged(self, network: Cell, path: str, stage: Any, line: int) -> None:
        """The stage of a cell by its path, ``_backbone.layer1``."""
        cell: Any = network
        for part in path.removeprefix('_backbone.').split('.'):
            parts = self.parts(cell)
            if isinstance(cell, Cell):
                cell = cell.attributes.get(part)
            elif parts is not None and part.isdecimal() and int(part) < len(parts):
                cell = parts[int(part)]
            else:
                cell = None
        self.sets(cell, 'pipeline_stage', stage, line)

    def layout(self, line: int, values: list[Any], named: dict[str, Any]) -> Thing:
        """A device matrix with names of its axes."""
        said = said_of(('device_matrix', 'alias_name', 'rank_list'), values, named)
        dims, names = said.get('device_matrix'), said.get('alias_name')
        is_plain = (
            isinstance(dims, (tuple, list))
            and isinstance(names, (tuple, list))
            and len(dims) == len(names)
            and all(isinstance(one, int) and one > 0 for one in dims)
            and all(isinstance(one, str) and one not in ('interleaved_parallel', 'None') for one in names)
        )
        if not is_plain or said.get('rank_list') is not None or not isinstance(dims, (tuple, list)) or not names:
            self.refuse(line, 'this Layout is not read', 'write Layout((2, 4), ("dp", "mp")), without more')
            return Thing('Layout', line)
        if not self.matrix:
            self.matrix = dict(zip(names, dims, strict=True))
        # Axes of a later layout are products of neighbouring axes of the first one.
        rest, axes = list(self.matrix.items()), {}
        for name, size in zip(names, dims, strict=True):
            group: list[str] = []
            while rest and prod(self.matrix[one] for one in group) < size:
                group.append(rest.pop(0)[0])
            if prod(self.matrix[one] for one in group) != size:
                self.refuse(line, 'the axes of this Layout are none of the first one', 'write one Layout for all')
            axes[name] = '+'.join(group) or 'none'
        if rest and prod(size for _, size in rest) > 1:
            self.refuse(line, 'this Layout has fewer devices than the first one', 'write one Layout for all')
        return Thing('Layout', line, marks={'names': axes})

    def laid(self, of: Thing, line: int, values: list[Any]) -> Thing:
        """The axes that split each dim: ``layout("dp", ("mp", "sp"), "None")``."""
        names, axes = of.marks.get('names', {}), []
        for value in values:
            parts = list(value) if isinstance(value, (tuple, list)) else [value]
            if parts == ['None']:
                axes.append('none')
            elif all(isinstance(part, str) and part in names for part in parts) and parts:
                axes.append('+'.join(names[part] for part in parts if names[part] != 'none') or 'none')
            else:
                self.refuse(line, f'a dim of this layout is split by {last(value)[:40]}', 'name axes of its Layout')
                axes.append('none')
        return Thing('a layout', line, marks={'axes': axes})

    def parallel(self, name: str, line: int, values: list[Any], named: dict[str, Any], owner: Thing) -> Any:
        """A method of AutoParallel as the setting of the older context that says the same."""
        if name not in _METHODS:
            if name not in OF_FILES:
                self.refuse(line, f'AutoParallel.{name}() is not known', _BY_HAND)
            return owner
        names = _METHODS[name].keys
        said = said_of(tuple(names), values, named)
        if len(values) > len(names) or set(said) - set(names):
            return self.refuse(line, f'AutoParallel.{name}() has arguments that are not read', _BY_HAND)
        self.changes += 1
        config = {names[key]: value for key, value in said.items() if names[key]}
        if name == 'hsdp':
            self.context['enable_parallel_optimizer'] = (True, line)
            self.context['parallel_optimizer_config'] = (config, line)
        elif name == 'pipeline':
            self.context['pipeline_stages'] = (said.get('stages', 1), line)
            self.context['pipeline_config'] = (config, line)
        else:
            self.context[name] = (config.get(name, UNKNOWN), line)
        return owner

    # keys of a plan

    def number(self, name: str, otherwise: int) -> int:
        value, line = self.context.pop(name, (otherwise, 0))
        if not isinstance(value, int) or value < 1:
            self.refuse(line, f'{name} is no number that the script says', f'write it, e.g. {name}=2')
            return otherwise
        if line:
            self.line(name, value, line, ())
        return value

    def switch(self, name: str) -> tuple[bool, int]:
        """Whether a setting is on, and its line."""
        value, line = self.context.pop(name, (False, 0))
        if not isinstance(value, (bool, int, type(None))):
            self.refuse(line, f'whether {name} is on is not known', f'write {name}=True or {name}=False')
        return value is True or value == 1, line

    def reads(self, world: int) -> None:
        """Whether a rank reads the whole batch, or its share."""
        said, line = self.context.pop('dataset_strategy', ('data_parallel', 0))
        if self.switch('full_batch')[0]:
            said = 'full_batch'
        if isinstance(said, (tuple, list)) and said and all(isinstance(one, (tuple, list)) and one for one in said):
            # By slices: of samples alone over all ranks, or none.
            sizes = {tuple(one)[:1] for one in said if all(part == 1 for part in one[1:])}
            is_whole = sizes == {(1,)} and all(set(one) == {1} for one in said)
            is_cut = sizes == {(world,)} and all(all(part == 1 for part in one[1:]) for one in said)
            said = 'full_batch' if is_whole else 'data_parallel' if is_cut else said
        if said not in ('data_parallel', 'full_batch'):
            self.refuse(line, 'a dataset_strategy by slices is not read', "write 'data_parallel' or 'full_batch'")
        self.full = said == 'full_batch'

    def plan(self, world: int, stages: int, assumed: list[str]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        said, line = self.context.pop('parallel_mode', ('stand_alone', 0))
        row = MODES.get(last(said).lower())
        mode = row.kind if row else None
        search, at = self.context.pop('search_mode', self.context.pop('auto_parallel_search_mode', ('', 0)))
        searched = SEARCHES.get(str(search) or str(mode)) if mode in SEARCHES else None
        if mode is None or mode in ('hybrid_parallel', 'dynamic_programming') or (mode in SEARCHES and not searched):
            text = f'the mode {last(said)} {last(search)}'.rstrip()
            self.refuse(line or at, f'{text} is not known', 'write semi_auto')
        elif mode == 'data_parallel' and world > 1 and not self.reduces:
            self.refuse(
                line, 'nothing sums gradients over devices', 'call nn.DistributedGradReducer, or train by a Model'
            )
        elif mode == 'stand_alone' and world > 1:
            what = f'stand_alone trains {world} models of their own, and MindSpore does so where nothing is said'
            self.refuse(line or 1, what, 'write data_parallel or semi_auto')
        elif searched:
            values['plan.search'] = searched.kind
            values |= {} if self.is_bare else {'plan.compat': self.given.get('version', '2.10')}
            if 'version' not in self.given:
                assumed.append('the search of MindSpore 2.10; --set version=2.0 for that of 2.0')
        specs = [(spec, at) for _, spec, at in self.specs()]
        shards = [(spec, at) for spec, at in specs if {'strategy', 'layout'} & spec.keys()]
        self.agrees(mode, world, stages, specs, line)
        if line:
            self.line('parallel_mode', last(said), line, ('plan.search',) if 'plan.search' in values else ())
        is_sharded = bool(shards or self.strategies)
        if 'plan.search' not in values and not is_sharded and world // stages > 1:
            values['plan.data'] = world // stages
            assumed.append('layers without a strategy are data parallel, as semi_auto has them')
        if is_sharded or self.is_bare or 'plan.search' in values:
            values['plan.dataset'] = 'full-batch' if self.full else 'data-parallel'
        elif self.full and mode == 'data_parallel':
            self.refuse(line, 'data_parallel reads shares of a batch', 'leave full_batch out')
        if any('layout' in spec or 'out_layout' in spec for spec, _ in shards):
            values['plan.device_matrix'] = self.matrix
        if stages > 1:
            values['plan.pipeline'] = stages
        if self.switch('enable_alltoall')[0]:
            values['plan.all_to_all'] = True
        values |= self.cut(stages)
        return values | self.optimizer_parallel() | self.fused() | self.order(stages) | self.overlapped()

    def agrees(
        self, mode: str | None, world: int, stages: int, specs: list[tuple[dict[str, Any], int]], at: int
    ) -> None:
        """Refuse what a mode does not do, and stages that no layer is on."""
        for spec, line in specs:
            if mode == 'data_parallel' and {'strategy', 'layout'} & spec.keys():
                self.refuse(line, 'data_parallel leaves strategies out', 'write semi_auto, or leave the strategy out')
                break
        if mode == 'data_parallel' and stages > 1:
            self.refuse(at, 'data_parallel has no pipeline', 'write semi_auto')
        if any('layout' in spec for spec, _ in specs) and prod(self.matrix.values()) != world // stages:
            what = f'the layouts are of {prod(self.matrix.values())} devices, and a stage has {world // stages}'
            self.refuse(next(line for spec, line in specs if 'layout' in spec), what, 'write a Layout of all')
        said = {spec['pipeline_stage'] for spec, _ in specs if 'pipeline_stage' in spec}
        if stages > 1 and specs and not said and mode not in SEARCHES:
            # A search cuts the network itself; a script that says stages names their layers.
            self.refuse(at or 1, f'no layer says on which of {stages} stages it is', 'set pipeline_stage of each layer')
        if any(stage >= stages for stage in said):
            self.refuse(at or 1, f'a layer is on stage {max(said)} of {stages}', 'write pipeline_stages')

    def cut(self, stages: int) -> dict[str, Any]:
        """Copies and micro-batches."""
        values: dict[str, Any] = {}
        for name, (number, at) in self.wrapped.items():
            key = f'plan.{WRAPPERS[name].kind}'
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                self.refuse(at, f'{name} has no number that the script says', 'write it')
            elif values.get(key, number) != number:
                self.refuse(at, f'{name} and another cell cut the batch twice', 'write one of them')
            elif name.startswith('Pipeline') and stages < 2 and number > 1:
                self.refuse(at, f'{name} cuts a batch for stages, and there is one', 'write pipeline_stages')
            else:
                values[key] = number
                self.line(name, number, at, (key,))
        return values

    def order(self, stages: int) -> dict[str, Any]:
        config, line = self.context.pop('pipeline_config', ({}, 0))
        if stages < 2 or config is None:
            return {}
        is_known = isinstance(config, dict) and not set(config) - {'pipeline_interleave', 'pipeline_scheduler'}
        scheduler = str(config.get('pipeline_scheduler', '1f1b')) if isinstance(config, dict) else last(config)
        is_interleaved = isinstance(config, dict) and config.get('pipeline_interleave') not in (None, False)
        if is_known and is_interleaved and self.is_bare:
            # How many chunks there are, marks of layers say.
            return {'plan.order': f'mindspore-2.10/{scheduler}'}
        if not is_known or is_interleaved or scheduler not in ('1f1b', 'gpipe'):
            what = f'the pipeline scheduler {scheduler}, interleaved {is_interleaved}'
            self.refuse(line, f'{what}, is not read', 'write 1f1b or gpipe, or --set plan.order=…')
        return {'plan.order': scheduler}

    def optimizer_parallel(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        on, line = self.switch('enable_parallel_optimizer')
        config, at = self.context.pop('parallel_optimizer_config', ({}, 0))
        config = {} if config is None else config
        if on and (not isinstance(config, dict) or set(config) - _SHARD_KEYS):
            unknown = ', '.join(sorted(set(config) - _SHARD_KEYS)) if isinstance(config, dict) else last(config)
            self.refuse(at, f'parallel_optimizer_config: {unknown} is not known', _BY_HAND)
        elif on:
            level = config.get('optimizer_level', 'level1')
            size = config.get('optimizer_weight_shard_size', -1)
            threshold = config.get('parallel_optimizer_threshold', 64)
            if level not in ('level1', 'level2', 'level3') or not (
                isinstance(size, int) and isinstance(threshold, int)
            ):
                self.refuse(at or line, 'a setting of optimizer parallelism is not what the script says', _BY_HAND)
                return values
            values['plan.hsdp'] = level
            if threshold != 64 or self.is_bare:
                values['plan.shard_threshold'] = f'{threshold} KiB'
            if size > 0 or self.is_bare:
                values['plan.shard_group'] = max(size, 0)
            if 'gradient_accumulation_shard' in config:
                values['plan.accumulate'] = 'sharded' if config['gradient_accumulation_shard'] is True else 'full'
            self.line('enable_parallel_optimizer', True, line, ('plan.hsdp',))
        return values

    def fused(self) -> dict[str, Any]:
        """Messages of gradients: by marks of layers, by size or by index."""
        said, line = self.context.pop('comm_fusion', (None, 0))
        has_ids = any('comm_fusion' in spec for _, spec, _ in self.specs())
        if said is None:
            return {'plan.fusion': 'ids'} if has_ids else {}
        of_sums = said.get('allreduce') if isinstance(said, dict) else None
        mode = of_sums.get('mode') if isinstance(of_sums, dict) else None
        others = [one for name, one in said.items() if name != 'allreduce'] if isinstance(said, dict) else []
        value = of_sums.get('config') if isinstance(of_sums, dict) else None
        is_known = {
            'auto': value is None and not others,
            'size': isinstance(value, int) and all(one == of_sums for one in others),
            'index': isinstance(value, (list, tuple)) and all(isinstance(one, int) for one in value) and not others,
        }.get(str(mode), False)
        if not is_known or has_ids:
            self.refuse(line, 'this comm_fusion is not read', "write {'allreduce': {'mode': 'auto', 'config': None}}")
            return {}
        self.line('comm_fusion', mode, line, ('plan.fusion',))
        return {'plan.fusion': {'auto': 'auto', 'size': f'{value} MiB'}.get(str(mode), value)}

    def overlapped(self) -> dict[str, Any]:
        """Overlap passes that a JSON beside turns on."""
        said, at = self.context.pop('ascend_config', ({}, 0))
        name, line = self.context.pop('transformer_opt', (None, 0))
        if not isinstance(said, dict) or set(said) - {'parallel_speed_up_json_path'}:
            self.refuse(at, 'ascend_config has settings that are not known', _BY_HAND)
        elif said:
            name, line = said['parallel_speed_up_json_path'], at
        if name is None:
            return {}
        path = self.folder / str(name)
        try:
            passes = json.loads(files.read_regular(path, 2**20)) if files.is_file(path) else None
        except ValueError:
            passes = None
        if not isinstance(passes, dict):
            self.refuse(line, 'the JSON of overlap passes that it names is not here', 'lay it beside the script')
            return {}
        rows = {row['setting'].removeprefix(f'{settings.SPEED_UP}.'): row for row in files.read_csv(_PASSES)}
        on: list[str] = []
        for key, value in passes.items():
            if value is True and rows.get(key, {}).get('key') == 'plan.overlap':
                on.append(rows[key]['value'].removeprefix('= '))
            elif value not in (False, 0, None):
                self.gap(key, value, line, 'a pass of its JSON')
        self.line('parallel_speed_up_json_path', name, line, ('plan.overlap',))
        return {'plan.overlap': list(dict.fromkeys(on))}

    def leftover(self) -> None:
        """Settings of the context that nothing above has read: without effect, off, or refused."""
        for name, (value, line) in self.context.items():
            if name == 'mode' and (value == 1 or last(value) == 'PYNATIVE_MODE'):
                self.refuse(line, 'a step op by op (PYNATIVE_MODE) is not read', 'write mode=ms.GRAPH_MODE')
            if name == 'strategy_ckpt_config' and isinstance(value, dict) and not value.get('load_file'):
                continue
            if name in WITHOUT_EFFECT or value in (None, False, '', 0) or name == 'device_num':
                continue
            self.refuse(line, f'{name} is not known (got {last(value)[:60]})', _BY_HAND)
