"""Peers: what one evaluation of GPT-3 by the same plan takes them, from checkouts of their source."""

import json
import subprocess
from pathlib import Path
from typing import Final

from benchmarks.laps import Spread
from benchmarks.report import commit_of

_TIMED: Final = """
import contextlib, io, json, os, sys, tempfile, time, warnings
warnings.simplefilter('ignore')
root, rounds = sys.argv[1], int(sys.argv[2])
sys.path.insert(0, root)
os.chdir(tempfile.mkdtemp())
def read(path):
    with open(os.path.join(root, path)) as file:
        return json.load(file)
{evaluate}
seconds = []
with contextlib.redirect_stdout(io.StringIO()):
    evaluate()
    for _ in range(rounds):
        begin = time.process_time()
        evaluate()
        seconds.append(time.process_time() - begin)
print(json.dumps(seconds))
"""
_CALCULON: Final = """
import logging
from calculon import System
from calculon.llm import Llm
plan = read('examples/3072_t4_p64_d12_mbs4_full.json')
plan.update(num_procs=1024, tensor_par=8, pipeline_par=16, data_par=8, batch_size=1536, microbatch_size=1)
plan.update(activation_recompute='attn_only')
model, machine = read('models/gpt3-175B.json'), read('systems/a100_80g.json')
def evaluate():
    system, llm = System(machine), Llm(Llm.Application(model), logging.getLogger())
    llm.compile(system, Llm.Execution.from_json(plan))
    llm.run(system)
    return llm.get_stats_json(False)
"""
_SIMUMAX: Final = """
from simumax.core.config import ModelConfig, StrategyConfig, SystemConfig
from simumax.core.perf_llm import PerfLLM
plan = dict(seq_len=2048, micro_batch_size=1, micro_batch_num=192, world_size=1024, tp_size=8, pp_size=16)
plan.update(zero_state=0, recompute_layer_num=6, mlp_recompute=False)
at = lambda path: os.path.join(root, 'configs', path)
def evaluate():
    strategy = StrategyConfig.init_from_config_file(at('strategy/tp2_pp1_dp4_mbs1_selective_recompute.json'))
    for key, value in plan.items():
        setattr(strategy, key, value)
    model = ModelConfig.init_from_config_file(at('models/gpt3-175b.json'))
    llm = PerfLLM()
    llm.configure(strategy, model, SystemConfig.init_from_config_file(at('system/a100_pcie.json')))
    llm.run_estimate()
    return llm.analysis_cost()
"""
PEERS: Final = {'Calculon': _CALCULON, 'SimuMax': _SIMUMAX}


def time_peer(name: str, root: Path, python: str, rounds: int) -> tuple[str, str]:
    """CPU seconds of one evaluation by a peer, one of ``PEERS``, and its commit.

    Arguments: ``root``, a checkout of its source; ``python``, an interpreter that has what it imports.
    """
    script = _TIMED.format(evaluate=PEERS[name])
    command = [python, '-c', script, str(root.resolve()), str(rounds)]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return str(Spread.of(json.loads(found))), commit_of(root)
