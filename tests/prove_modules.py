"""Trains modules that this project did not write under every plan; losses and gradients against their own autograd.

``make prove-modules`` writes docs/modules_proof.md.
"""

import subprocess
import sys
import time
import warnings
from pathlib import Path

import torch
import transformers
from module_cases import BATCH, MODULES, PLANS, deviation, exported

from simpar.lower import lower
from simpar.plan import Plan
from simpar.workload import Workload

PAGE = Path(__file__).parent.parent / 'docs' / 'modules_proof.md'
TOLERANCE = 1e-10
SEED = 0


def split_share(case, found) -> float:
    """The share of the floating-point operations of products that tensor 2 takes from a rank, of the half that it could."""

    def products(plan, ranks):
        program = lower(Workload(model=found.model, batch=BATCH, loss=case.loss), plan, ranks)
        return sum(op.flops for op in program.op_classes if op.operator in ('matmul', 'aten_product', 'aten_attention'))

    full = products(Plan(), 1)
    return 2 * (1 - products(Plan(tensor=2), 2) / full)


def row(name: str) -> tuple[str, bool]:
    """A line of the table, and whether all of it is right."""
    torch.manual_seed(SEED)
    case = MODULES[name]()
    found = exported(case)
    kinds = {
        call
        for node in found.model.nodes
        if hasattr(node.operator, 'spec')
        for call in node.operator.spec.calls.split('"')[1::2]
    }
    worst = [deviation(case, found, plan, ranks, SEED) for plan, ranks in PLANS.values()]
    weights = sum(one.numel() for one in case.module.parameters())
    cells = [name, f'`{type(case.module).__name__}`', f'{weights:,}', str(len(found.model.nodes)),
             str(len([one for one in kinds if '.' in one])), f'{split_share(case, found):.0%}', *(f'{one:.0e}' for one in worst)]  # fmt: skip
    return f'| {" | ".join(cells)} |', all(one <= TOLERANCE for one in worst)


def main() -> int:
    """Write the page; 1 where a gradient is wrong."""
    warnings.simplefilter('ignore')
    began = time.process_time()
    lines, right = [], True
    for name in MODULES:
        line, good = row(name)
        print(line, flush=True)
        lines.append(line)
        right = right and good
    commit = subprocess.run(
        ['git', 'rev-parse', '--short', 'HEAD'], capture_output=True, text=True, check=True
    ).stdout.strip()
    PAGE.write_text('\n'.join([
        '# Modules that others wrote, trained',
        '',
        f'Written by `make prove-modules` at commit {commit}, seed {SEED}, torch {torch.__version__}, transformers '
        f'{transformers.__version__}, in {time.process_time() - began:.0f} s of CPU.',
        '',
        'Each module is trained in process for a step in fp64 with its own weights. A number is the largest deviation of the loss and of any gradient',
        "from the module's own autograd: the norm of the difference over that of the gradient, or over a thousandth of the largest. At most 1e-10 is right. On both",
        "sides the module's casts to fp32 are widened by one patch (`Unnarrowed` in `tests/huggingface_cases.py`). Tensor 2 splits: the share of the work of products",
        'that two tensor ranks divide, 100 % where each does half.',
        '',
        f'| module | class | weights | operators | kinds of calls | tensor 2 splits | {" | ".join(PLANS)} |',
        '|' + '---|' * (6 + len(PLANS)),
        *lines,
        '',
    ]))  # fmt: skip
    return 0 if right else 1


if __name__ == '__main__':
    sys.exit(main())
