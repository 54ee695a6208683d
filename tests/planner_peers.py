"""The planner beside Calculon, each on the space that both have: `python -m tests.planner_peers CHECKOUT --devices 64`.

    git clone https://github.com/calculon-ai/calculon CHECKOUT

Nothing of Calculon is in this project: its checkout is imported from the path that is given. Each tool searches GPT-3
175B on A100 nodes with its own prices, and predicts the other's best plan, too. The space: tensor × pipeline × data,
micro-batches, interleaving, recomputation, sharded optimizer, sequence parallelism. What one of the two has alone is
left out: Calculon's offloading, its choice of a network for each axis, overlap of tensor parallelism; simpar's orders,
copies, tiles, context, fusion.
"""

import importlib
import json
import logging
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from types import SimpleNamespace
from typing import Any, NamedTuple

from simpar.case import cluster_of
from simpar.planner.answer import told
from simpar.planner.plan import Planning
from simpar.planner.space import KEYS, space_of
from simpar.plans import Plan
from simpar.schedule import load_schedule
from simpar.schedule.contents import Planner
from simpar.sweep.answer import predicted
from simpar.units import format_time
from tests.proof import arguments, table

LAYERS, HIDDEN, HEADS, SEQUENCE, NODE = 96, 12288, 96, 2048, 8
SAMPLE = 400
"""Plans of Calculon's whole space that are run to learn how long one takes."""
RECOMPUTE = {'none': 'none', 'selective': 'attn_only', 'full': 'full'}


class Point(NamedTuple):
    """A plan of the space that both tools have; ``size``, samples of a micro-batch."""

    tensor: int
    pipeline: int
    data: int
    chunks: int
    size: int
    recompute: str
    zero: int
    sequence_parallel: bool

    def plan(self, batch: int) -> dict[str, Any]:
        """As simpar has it."""
        found = self._asdict()
        found['micro_batches'] = batch // self.data // found.pop('size')
        return {**found, 'order': 'interleaved-1f1b' if self.chunks > 1 else '1f1b'}


def main() -> None:
    options = arguments(
        __doc__,
        {'name': 'checkout', 'type': Path},
        devices=64,
        batch=(0, 'default: as many samples as devices'),
        gap=(0.02, 'of our search'),
        seconds=(300.0, 'of our search, at most'),
    )
    devices, batch = options.devices, options.batch or options.devices
    theirs = Calculon(options.checkout, devices, batch)
    model = {'layers': LAYERS, 'hidden': HIDDEN, 'heads': HEADS, 'vocab': 51200, 'sequence': SEQUENCE}
    ours = Ours(
        {'nodes': devices // NODE},
        {'transformer': model, 'batch': batch, 'precision': 'fp16'},
        {
            'tensor': [one for one in factors(devices) if HEADS % one == 0],
            'sequence_parallel': [False, True],
            'pipeline': [one for one in factors(devices) if LAYERS % one == 0],
            'micro_batches': factors(batch),
            'order': ['1f1b', 'interleaved-1f1b'],
            'chunks': factors(LAYERS)[:-1],
            'recompute': [*RECOMPUTE],
            'zero': [0, 1],
        },
    )
    print(f'GPT-3 175B on {devices} A100 80 GB, batch {batch}\n')
    seconds, plans, (rate, best) = theirs.search()
    assert rate
    print(f'Calculon: {plans:,} plans of the common space in {seconds:.1f} CPU s, {plans / seconds:.0f} a second')
    whole, each, error = theirs.whole()
    print(f'Calculon: its own search has {whole:,} plans; {SAMPLE} drawn ones took {each * 1e3:.1f} ms in the mean,')
    print(f'          ± {error * 1e3:.1f}; so all of them take {whole * each / 3600:.1f} CPU hours (not run)')
    plan, spent = ours.search(options.gap, options.seconds)
    size = batch // plan.data // plan.micro_batches
    own = Point(
        plan.tensor, plan.pipeline, plan.data, max(plan.chunks, 1), size, plan.recompute, plan.zero,
        plan.sequence_parallel,
    )  # fmt: skip
    rows = [(name, told(one._asdict()), ours.step(one.plan(batch)), theirs.step(one))
            for name, one in (('Calculon', best), ('simpar', own))]  # fmt: skip
    print(*table('best plan of | plan | by simpar | by Calculon', rows), sep='\n')
    shares = [spent / (whole * (each + off * error)) for off in (0, 2, -2)]
    common = f'{spent / seconds:.2f} of Calculon in the common space'
    print(f'\nCPU: {common}, {shares[0]:.5f} of its own search: {shares[1]:.5f} to {shares[2]:.5f}')


class Ours:
    """simpar's side: a model on nodes of A100, searched over some keys, the others fixed."""

    def __init__(self, cluster: dict[str, Any], workload: dict[str, Any], keys: dict[str, Any]) -> None:
        optimizer = {'adam': {'master_weights': True}}
        self._tree = {
            'simpar': 1,
            'cluster': {'profile': 'a100-sxm-8', **cluster},
            'workload': {**workload, 'optimizer': optimizer},
        }
        schedule = load_schedule(self._tree)
        free = {f'plan.{key}': keys.get(key, 'fixed') for key in KEYS}
        schedule = replace(schedule, planner=Planner(keys=free))
        self._planning = Planning(schedule=schedule, space=space_of(schedule, cluster_of(schedule).world))

    def search(self, gap: float, seconds: float) -> tuple[Plan, float]:
        """The best plan, and CPU seconds; prints what the search came to."""
        begun = time.process_time()
        found = self._planning.search(jobs=1, gap=gap, seconds=seconds)
        spent = time.process_time() - begun
        assert found.best is not None
        predicted = len(found.ranking) + found.infeasible
        ended = 'ended by itself' if found.complete else 'interrupted'
        print(
            f'simpar: {found.plans:,} plans, {predicted} predicted, gap {found.gap:.2%}, {ended}, {spent:.1f} CPU s\n'
        )
        return found.best.schedule.plan, spent

    def step(self, plan: dict[str, Any]) -> str:
        """A plan's step in words, or why it cannot be."""
        found = predicted(load_schedule({**self._tree, 'plan': plan}))
        step = format_time(found.figures.step) if found.figures else ''
        return step if found.feasible else f'{step} ({found.reason})'.strip()


class Calculon:
    """The other side, by what its modules offer."""

    def __init__(self, checkout: Path, devices: int, batch: int) -> None:
        sys.path.insert(0, str(checkout))
        llm = importlib.import_module('calculon.llm')
        system = importlib.import_module('calculon.system')
        self._own = importlib.import_module('calculon.llm.optimal_execution')
        self.Llm, self.devices, self.batch = llm.Llm, devices, batch
        self._app = self.Llm.Application(json.loads((checkout / 'models/gpt3-175B.json').read_text()))
        self._system = system.System(json.loads((checkout / 'systems/a100_80g.json').read_text()))

    def search(self) -> tuple[float, int, tuple[float, Point]]:
        """CPU seconds, plans, and the best with its samples a second."""
        begun, count, best = time.process_time(), 0, (0.0, Point(1, 1, 1, 1, 1, 'none', 0, False))
        for point in self._points():
            count += 1
            best = max(best, (self._rate(self._execution(point)), point))
        return time.process_time() - begun, count, best

    def step(self, point: Point) -> str:
        """A plan's step in words."""
        rate = self._rate(self._execution(point))
        return format_time(self.batch / rate) if rate else 'refused'

    def whole(self) -> tuple[int, float, float]:
        """How many plans its own search has, CPU seconds of a plan in the mean, and the error of the mean, by a sample.

        Each plan of the search is as likely in the sample as any other, those that it refuses among them.
        """
        parts = [one for degrees in self._degrees() for one in self._parts(*degrees)]
        counts = [self._part(part, debug=True) for part in parts]
        draw = random.Random(1)
        seconds = []
        for part, count in draw.choices(list(zip(parts, counts, strict=True)), weights=counts, k=SAMPLE):
            execution = self._plan_of(part, draw.randrange(count))
            begun = time.process_time()
            self._rate(execution)
            seconds.append(time.process_time() - begun)
        return sum(counts), mean(seconds), stdev(seconds) / SAMPLE**0.5

    def _degrees(self) -> Iterator[tuple[int, int, int]]:
        for tensor in self.Llm.get_all_tensor_parallelisms(self.devices, HIDDEN, HEADS):
            for pipeline in self.Llm.get_all_pipeline_parallelisms(self.devices, tensor, LAYERS):
                yield tensor, pipeline, self.Llm.get_data_parallelism(self.devices, tensor, pipeline)

    def _parts(self, tensor: int, pipeline: int, data: int) -> Iterator[tuple[Any, ...]]:
        """Arguments of its own search, which it asks once for each of them."""
        batch = self._own.OptimalExecution.get_batch_size(data, self.batch)
        if batch is None:
            return
        for chunks in self.Llm.get_valid_pipeline_interleavings(LAYERS, pipeline):
            for recompute in ('full', 'attn_only', 'none'):
                for sharded in (True, False) if data > 1 else (False,):
                    for kind in ('ar', 'p2p_rs_ag', 'rs_ag'):
                        yield tensor, pipeline, data, chunks, batch, recompute, sharded, kind

    def _part(self, part: tuple[Any, ...], *, debug: bool) -> int:
        """Have it search a part; returns how many plans that has. Argument: ``debug``, it counts and runs none."""
        own = (1, False, self.devices, self.batch, 'float16', self._app, self._system)
        return int(self._own.OptimalExecution.search(debug, *own, *part, [True], False, True, True)[1])

    def _plan_of(self, part: tuple[Any, ...], number: int) -> dict[str, Any]:
        """One plan of a part, as its own search writes it."""
        found: list[dict[str, Any]] = []
        llm = self.Llm

        class Told(llm):  # type: ignore[misc, valid-type]
            """Takes down plans, and runs none."""

            Execution = SimpleNamespace(from_json=dict)

            def compile(self, system: Any, execution: dict[str, Any]) -> None:
                """As its model's, which would make ready to run it."""
                found.append(execution)
                raise llm.Error('not run')

        self._own.Llm = Told
        try:
            self._part(part, debug=False)
        finally:
            self._own.Llm = llm
        return found[number]

    def _points(self) -> Iterator[Point]:
        for tensor, pipeline, data in self._degrees():
            if self.batch % data:
                continue
            for chunks in self.Llm.get_valid_pipeline_interleavings(LAYERS, pipeline):
                for size in self.Llm.get_valid_microbatch_sizes(SEQUENCE, tensor, data, self.batch, pipeline):
                    for recompute in RECOMPUTE:
                        for zero in (0, 1) if data > 1 else (0,):
                            for sliced in (False, True) if tensor > 1 else (False,):
                                yield Point(tensor, pipeline, data, chunks, size, recompute, zero, sliced)

    def _execution(self, point: Point) -> dict[str, Any]:
        inner = point.tensor * point.pipeline
        return {
            'num_procs': self.devices, 'tensor_par': point.tensor, 'pipeline_par': point.pipeline,
            'data_par': point.data, 'tensor_par_net': int(point.tensor > NODE), 'pipeline_par_net': int(inner > NODE),
            'data_par_net': int(inner * point.data > NODE), 'batch_size': self.batch, 'microbatch_size': point.size,
            'datatype': 'float16', 'fused_activation': True, 'attention_type': 'multihead',
            'activation_recompute': RECOMPUTE[point.recompute], 'pipeline_interleaving': point.chunks,
            'optimizer_sharding': bool(point.zero),
            'tensor_par_comm_type': 'rs_ag' if point.sequence_parallel else 'ar', 'tensor_par_overlap': 'none',
            'seq_par_ag_redo': point.sequence_parallel and point.recompute != 'full',
            'data_par_overlap': point.data > 1, 'weight_offload': False, 'activations_offload': False,
            'optimizer_offload': False, 'training': True,
        }  # fmt: skip

    def _rate(self, execution: dict[str, Any]) -> float:
        """Samples a second; 0 where it refuses the plan."""
        model = self.Llm(self._app, logging.Logger('calculon'))
        try:
            model.compile(self._system, self.Llm.Execution.from_json(execution))
            model.run(self._system)
        except self.Llm.Error:
            return 0.0
        return float(model.get_stats_json(False)['sample_rate'])


def factors(number: int) -> list[int]:
    return [one for one in range(1, number + 1) if number % one == 0]


if __name__ == '__main__':
    main()
