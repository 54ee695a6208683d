"""The planner beside SimuMax, on the space that both have: `python -m tests.planner_simumax CHECKOUT`.

    git clone https://github.com/MooreThreads/SimuMax CHECKOUT

Nothing of SimuMax is in this project: its checkout is imported from the path that is given. Each tool searches Llama 3
70B on 64 A100 with its own prices, and predicts the other's best plan, too. SimuMax has a file of A100 over PCIe at 30
GB/s; ours are the A100 of `a100-sxm-8` with links inside of nodes at that rate. The space: tensor × pipeline × data,
micro-batches of 1, 2 and 4 samples, recomputation, the optimizer sharded, 1F1B. What SimuMax has alone is left out of
ours: recomputation of some layers only.
"""

import importlib
import re
import sys
import time
from pathlib import Path
from typing import Any

from simpar.planner.answer import told
from simpar.units import format_time
from tests.planner_peers import Ours, factors
from tests.proof import arguments, table

DEVICES, BATCH = 64, 128
MODEL = {
    'layers': 80, 'hidden': 8192, 'heads': 64, 'kv_heads': 8, 'ffn': 28672, 'vocab': 128256, 'sequence': 4096,
    'norm': 'rms_norm', 'activation': 'swiglu', 'bias': [], 'position': 'rotary',
}  # fmt: skip
TENSOR, PIPELINE, SIZES = (1, 2, 4, 8), (1, 2, 4, 8, 16), (1, 2, 4)
RECOMPUTE = {'none': 'no_recompute', 'selective': 'selective_recompute', 'full': 'full_block'}
GAP, SECONDS = 0.02, 240.0
"""Our search ends at this gap, or after so many seconds."""
MARGIN = 6
"""GiB of a device that SimuMax leaves free."""
Found = tuple[float, dict[str, Any]]
"""Seconds of a step, and keys of the plan."""


def main() -> None:
    options = arguments(__doc__, {'name': 'checkout', 'type': Path})
    model = _theirs(options.checkout)
    begun = time.process_time()
    everything = _search(model, TENSOR, PIPELINE, SIZES, tuple(RECOMPUTE))
    spent = time.process_time() - begun
    their_step, theirs = min(everything, key=lambda one: one[0])
    print(f'Llama 3 70B on {DEVICES} A100, batch {BATCH}\n', flush=True)
    print(f'SimuMax: {len(everything)} plans in {spent:.1f} CPU s', flush=True)
    # 300 GB/s of NVLink to the 30 GB/s of their file.
    ours = Ours(
        {'nodes': DEVICES // 8, 'links': {'nvlink': 0.1}},
        {'transformer': MODEL, 'batch': BATCH, 'precision': 'bf16'},
        {
            'tensor': list(TENSOR),
            'sequence_parallel': [False, True],
            'pipeline': list(PIPELINE),
            'micro_batches': factors(BATCH),
            'recompute': list(RECOMPUTE),
            'zero': [1],
        },
    )
    plan, _ = ours.search(GAP, SECONDS)
    size = BATCH // plan.data // plan.micro_batches
    own = {'tensor': plan.tensor, 'pipeline': plan.pipeline, 'size': size, 'recompute': plan.recompute}
    again = _search(model, (plan.tensor,), (plan.pipeline,), (size,), (plan.recompute,))
    known = format_time(min(seconds for seconds, _ in again)) if again else 'does not fit'
    found = ('SimuMax', theirs, format_time(their_step)), ('simpar', own, known)
    rows = [(name, told(one), ours.step(_plan(one)), by_them) for name, one, by_them in found]
    print(*table('best plan of | plan | by simpar | by SimuMax', rows), sep='\n')


def _theirs(checkout: Path) -> Any:
    """SimuMax's model of the steps."""
    sys.path.insert(0, str(checkout))
    config = importlib.import_module('simumax.core.config')
    made = importlib.import_module('simumax.core.perf_llm').PerfLLM()
    folder = checkout / 'configs'
    strategy = config.StrategyConfig.read_json_file(str(folder / 'strategy/tp1_pp2_dp4_mbs1.json'))
    strategy |= {'enable_recompute': False, 'recompute_granularity': None, 'recompute_layer_num': 0}
    made.configure(
        strategy_config=config.StrategyConfig.init_from_dict(strategy),
        model_config=config.ModelConfig.init_from_config_file(str(folder / 'models/llama3-70b.json')),
        system_config=config.SystemConfig.init_from_config_file(str(folder / 'system/a100_pcie.json')),
    )
    return made


_DEGREES = (('tensor', 'tp'), ('pipeline', 'pp'))


def _search(
    model: Any, tensor: tuple[int, ...], pipeline: tuple[int, ...], sizes: tuple[int, ...], recompute: tuple[str, ...]
) -> list[Found]:
    """Every plan that SimuMax looked at and that fits."""
    found: list[Found] = []
    for size in sizes:
        for kind in recompute:
            told_: dict[str, list[Any]] = {}
            model.search_best_parallel_strategy(
                world_size=DEVICES, gmi_error=MARGIN, micro_batch_size=size, global_batch_size=BATCH,
                all_search_result=told_, tp_search_list=list(tensor), ep_search_list=[1],
                pp_search_list=list(pipeline), recompute_search_type=[RECOMPUTE[kind]], use_reserved_memory=True,
                dump_path=None, verbose=False,
            )  # fmt: skip
            for text, seconds in zip(told_.get('parallelism', ()), told_.get('iter_time', ()), strict=True):
                degrees = {name: int(re.search(rf'\b{mark}(\d+)', text)[1]) for name, mark in _DEGREES}  # type: ignore[index]
                found.append((float(seconds.split()[0]), {**degrees, 'size': size, 'recompute': kind}))
    return found


def _plan(found: dict[str, Any]) -> dict[str, Any]:
    """A plan as simpar has it."""
    data = DEVICES // found['tensor'] // found['pipeline']
    return {
        'tensor': found['tensor'], 'pipeline': found['pipeline'], 'data': data, 'recompute': found['recompute'],
        'micro_batches': BATCH // data // found['size'], 'sequence_parallel': found['tensor'] > 1, 'zero': 1,
    }  # fmt: skip


if __name__ == '__main__':
    main()
