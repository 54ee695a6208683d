"""Kernels that the executor launches on CUDA for each operator, and the bytes that these move, counted by dry runs.

`python -m tests.executor_counts` writes them into hw_profiles/stacks/simpar-executor.yaml; a test holds it.
"""

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch

from executor.virtual.dry_run import DryIssuer, FoldedComputation, dry_run
from executor.virtual.engine import Queue
from simpar.case import load_case
from simpar.cost.compute import NO_WORK, PRODUCTS
from simpar.program import OpClass
from tests.proof import ROOT

STACK = ROOT / 'hw_profiles' / 'stacks' / 'simpar-executor.yaml'
LAUNCHES = 'launches:\n'
MOST = 1000
"""Passes beyond which an operator's own bytes are none to speak of."""
GPT = {'layers': 1, 'hidden': 1024, 'heads': 8, 'vocab': 8192, 'sequence': 1024}
LLAMA = {
    **GPT, 'kv_heads': 2, 'norm': 'rms_norm', 'activation': 'swiglu', 'bias': [], 'position': 'rotary',
    'qk_norm': True,
}  # fmt: skip
ADAMW = {'adamw': {'master_weights': True}}
MIXTURE = {**LLAMA, 'experts': {'count': 8, 'top_k': 2, 'ffn': 512, 'aux_loss': 0.01, 'capacity': 1.0}}
CASES: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    (GPT, {}),
    (LLAMA, {}),
    (MIXTURE, {}),
    (GPT, {'data': 2, 'zero': 3}),
    (LLAMA, {'tensor': 2, 'sequence_parallel': True}),
    (MIXTURE, {'data': 2, 'expert': 2, 'zero': 1}),
)


@dataclass(frozen=True)
class Count:
    """What an operator launches in a phase: kernels, and their bytes over those that it must move."""

    kernels: int
    passes: float


@contextmanager
def tasks() -> Iterator[list[int]]:
    """Bytes that each task of kernels touches while it is entered."""
    found: list[int] = []
    issue = Queue.issue

    def noting(queue: Queue, what: str, run: Any, touches: Any = ()) -> None:
        if what != 'an allocation':
            found.append(sum(past - first for _, first, past, _ in touches))
        issue(queue, what, run, touches)

    with patch.object(Queue, 'issue', noting):
        yield found


def counts(cases: Iterable[tuple[dict[str, Any], dict[str, Any]]] = CASES) -> dict[str, Count]:
    """By operator and phase; the first of each, in a model of 1,024 features in 16 bits."""
    found: dict[str, Count] = {}

    class Counting(FoldedComputation):
        def _folded(self, op: OpClass, reads: list[torch.Tensor], issued: Any) -> list[torch.Tensor]:
            with tasks() as each:
                results = super()._folded(op, reads, issued)
            # The collective itself is no kernel here.
            own = op.kind == 'collective'
            least = op.bytes or 1.0
            count = Count(len(each) + own, round(sum(each) / least + own, 1))
            found.setdefault(f'{op.operator}.{op.phase}', count)
            return results

    class Issuer(DryIssuer):
        computation_of = Counting

    for model, plan in cases:
        case = {
            'simpar': 1,
            'cluster': {'profile': 'h100-sxm-8', 'devices': 2 if plan else 1, 'stack': 'none'},
            'workload': {'transformer': model, 'batch': 4, 'precision': 'bf16', 'optimizer': ADAMW},
            'plan': plan,
        }
        dry_run(load_case(case).program, issuer=Issuer)
    return dict(sorted(found.items()))


def lines(found: dict[str, Count]) -> Iterator[str]:
    """The rows of the stack: what is not one kernel that moves its bytes once."""
    for key, one in found.items():
        operator = key.partition('.')[0]
        # What reads a few numbers of each expert is priced by its kernels alone.
        if operator in NO_WORK or one.kernels == 0:
            continue
        passes = '' if operator in PRODUCTS or one.passes > MOST else f', passes: {one.passes:g}'
        if one.kernels > 1 or (passes and abs(one.passes - 1) > 0.1):
            yield f'  {key}: {{kernels: {one.kernels}{passes}, source: *counted}}'


def main() -> None:
    """Write the rows."""
    warnings.simplefilter('ignore')
    text = STACK.read_text(encoding='utf-8') if STACK.exists() else LAUNCHES
    head = text[: text.index(LAUNCHES) + len(LAUNCHES)]
    STACK.write_text(head + '\n'.join(lines(counts())) + '\n', encoding='utf-8')


if __name__ == '__main__':
    main()
