"""Trains modules that this project did not write under every plan; losses and gradients against their own autograd.

``make prove-modules`` writes docs/proofs/modules_proof.md.
"""

import sys
import time
import warnings
from pathlib import Path

import torch
import transformers
from module_cases import BATCH, MODULES, PLANS, deviation, exported
from proof import line, page_head, table

from simpar import Plan, Workload
from simpar.lower import lower

PAGE = Path(__file__).parent.parent / 'docs' / 'proofs' / 'modules_proof.md'
TOLERANCE = 1e-10
SEED = 0
PRODUCTS = ('matmul', 'aten_product', 'aten_attention')


def split_share(case, found) -> float:
    """Of the half of the work of products that tensor 2 could take from a rank, the share that it takes."""

    def products(plan, ranks):
        program = lower(Workload(model=found.model, batch=BATCH, loss=case.loss), plan, ranks)
        return sum(op.flops for op in program.op_classes if op.operator in PRODUCTS)

    return 2 * (1 - products(Plan(tensor=2), 2) / products(Plan(), 1))


def row(name: str) -> tuple[str, bool]:
    """A line of the table, and whether all of it is right."""
    torch.manual_seed(SEED)
    case = MODULES[name]()
    found = exported(case)
    worst = [deviation(case, found, plan, ranks, SEED) for plan, ranks in PLANS.values()]
    weights = sum(one.numel() for one in case.module.parameters())
    cells = [
        name,
        f'`{type(case.module).__name__}`',
        f'{weights:,}',
        str(len(found.model.nodes)),
        f'{split_share(case, found):.0%}',
        *(f'{one:.0e}' for one in worst),
    ]
    return line(cells), all(one <= TOLERANCE for one in worst)


def main() -> int:
    """Write the page; 1 where a gradient is wrong."""
    warnings.simplefilter('ignore')
    began = time.process_time()
    lines, right = [], True
    for name in MODULES:
        text, good = row(name)
        print(text, flush=True)
        lines.append(text)
        right = right and good
    seconds = time.process_time() - began
    versions = {'torch': torch.__version__, 'transformers': transformers.__version__}
    head = table(f'module | class | weights | operators | tensor 2 splits | {" | ".join(PLANS)}', ())
    made = page_head('modules', seed=SEED, seconds=seconds, **versions)
    PAGE.write_text('\n'.join([made, *head, *lines, '']))
    return 0 if right else 1


if __name__ == '__main__':
    sys.exit(main())
