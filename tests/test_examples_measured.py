"""Steps with optimizer parallelism that others measured: predicted within a wide band, and in memory that they had.

FSDP of MPT re-gathers weights for every micro-batch: ``zero: 3``. MindFormers' parallel optimizer is ``hsdp: level1``.
``python tests/test_examples_measured.py`` prints the table of docs/proofs/sharding_tables.md. Tuned on none.
"""

from functools import cache
from math import log
from pathlib import Path
from statistics import median

import pytest
from test_accuracy import devices, recorded

from simpar.lower import lower
from simpar.plans import Plan
from simpar.predict import Prediction, predict
from simpar.workload import AdamW, Transformer, Workload

BANDS = {'a100-sxm-8': (0.65, 1.1), 'h100-sxm-8': (0.45, 1.1), 'ascend910b-8': (0.5, 1.15)}
"""Predicted / measured, as in tests/test_accuracy.py; wider for the fine-tunes of MindFormers."""
ROWS = recorded('sharded.csv')
DOCUMENTATION = Path(__file__).parent.parent / 'docs' / 'proofs' / 'sharding_tables.md'
ids = [f'{row["model"]}-{row["cluster"]}-{row["ranks"]}-{row["sequence"]}' for row in ROWS]


@cache
def predicted(number: int) -> Prediction:
    row = ROWS[number]
    keys = ('layers', 'hidden', 'heads', 'kv_heads', 'ffn', 'vocab', 'sequence')
    ranks, ascend = row['ranks'], row['cluster'].startswith('ascend')
    workload = Workload(
        model=Transformer(**{key: row[key] for key in keys}, tied=bool(row['tied'])),
        batch=row['micro_batch'] * row['micro_batches'] * ranks, precision='bf16', optimizer=AdamW(),
    )  # fmt: skip
    plan = Plan(
        data=ranks, micro_batches=row['micro_batches'], recompute=row['recompute'], prefetch=1,
        hsdp='level1' if ascend else 'off', zero=0 if ascend else 3,
    )  # fmt: skip
    return predict(lower(workload, plan, ranks), None, devices(row['cluster'], ranks))


@pytest.mark.parametrize('number', range(len(ROWS)), ids=ids)
def test_a_measured_step_lies_in_a_wide_band_and_fits(number: int) -> None:
    row, found = ROWS[number], predicted(number)
    low, high = BANDS[row['cluster']]
    assert low < found.step / row['seconds'] < high
    assert found.memory.peak < row['device_gb'] * 1e9


def test_rows_of_one_device_are_ranked_as_measured_a_token() -> None:
    """Pairs that were measured more than a fifth apart."""
    right = wrong = 0
    for cluster in BANDS:
        rows = [(number, row) for number, row in enumerate(ROWS) if row['cluster'] == cluster]
        for place, (number, row) in enumerate(rows):
            for other_number, other in rows[:place]:
                measured = log(row['seconds'] / tokens(row)) - log(other['seconds'] / tokens(other))
                ours = log(predicted(number).step / tokens(row)) - log(predicted(other_number).step / tokens(other))
                if abs(measured) > log(1.2):
                    right, wrong = right + (measured * ours > 0), wrong + (measured * ours <= 0)
    assert right + wrong > 60
    assert right > 0.95 * (right + wrong)


def tokens(row: dict[str, int]) -> int:
    """Of a device in a step."""
    return row['micro_batch'] * row['micro_batches'] * row['sequence']


def table() -> str:
    """Every row, in Markdown."""
    heads = ('model', 'devices', 'sequence', 'samples a micro-batch', 'micro-batches', 'recompute')
    figures = ('measured s', 'predicted', 'error', 'exposed', 'memory')
    lines = [f'| {" | ".join(heads + figures)} |', '|' + '---|' * len(heads) + '---:|' * len(figures)]
    for number, row in enumerate(ROWS):
        found = predicted(number)
        name = {'h100-sxm-8': 'H100', 'a100-sxm-8': 'A100', 'ascend910b-8': '910B'}[row['cluster']]
        exposed = found.metrics.steady.exposed / found.step
        cells = (
            row['model'], f'{row["ranks"]} × {name} {row["device_gb"]} GB', row['sequence'], row['micro_batch'],
            row['micro_batches'], row['recompute'], f'{row["seconds"]:.2f}', f'{found.step:.2f}',
            f'{(found.step / row["seconds"] - 1) * 100:+.0f} %', f'{exposed * 100:.1f} %',
            f'{found.memory.peak / 1e9:.0f} GB',
        )  # fmt: skip
        lines.append(f'| {" | ".join(map(str, cells))} |')
    return '\n'.join(lines) + '\n'


def test_the_documentation_has_this_table() -> None:
    assert table() in DOCUMENTATION.read_text(encoding='utf-8')


if __name__ == '__main__':
    print(table())
    for cluster in BANDS:
        errors = [
            predicted(number).step / row['seconds'] - 1 for number, row in enumerate(ROWS) if row['cluster'] == cluster
        ]
        print(cluster, f'{median(errors) * 100:+.0f} %, {min(errors) * 100:+.0f} to {max(errors) * 100:+.0f} %')
