"""Write the tables of docs/accuracy.md and docs/proofs/accuracy_rows.md: `python -m tests.accuracy_page [ANSWER.json]`.

Arguments: the JSON of `simpar validate --json`; without it every row is predicted, which takes some minutes.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import date
from hashlib import sha256
from math import exp, sqrt
from pathlib import Path
from typing import Any

from simpar.cost.price import Effects, Pricer
from simpar.files import read_csv
from simpar.hardware import Cluster
from simpar.interval import LEVEL, TABLE
from simpar.predict import followed, under_load
from simpar.profiles import profile_folder
from simpar.shipped import measured_folder
from simpar.validate.rows import Row, read_rows
from simpar.validate.run import Pair, answers, covered, outcomes
from simpar.validate.text import to_dict
from tests.equipment.residuals import Bench, bench_of, left_out, spreads_of, written

PAGE = Path(__file__).parent.parent / 'docs' / 'proofs' / 'accuracy_rows.md'
KEPT = Path(__file__).parent / 'recorded' / 'accuracy' / 'rows.csv'
"""Every row as it was last predicted."""
TREND = KEPT.with_name('trend.csv')
"""Mean errors of sets, by the day on which one of them changed."""
CLOSE = 0.002
"""Predictions that differ by less are equal."""
EACH = 10
"""Rows of a set that effects are left out of."""
MOST_DEVICES = 64
"""Larger rows take too long to be predicted seven times."""


def table(answer: dict[str, Any]) -> list[str]:
    """Scores a set, on rows that nothing was fitted on."""
    lines = [
        '| set | rows | mean error, 95 % interval | median | 90th percentile | bias | null model | regret | in order |',
        '|---|---|---|---|---|---|---|---|---|',
    ]
    for one in answer['sets']:
        score, null, choice = one['score'], one['null'], one['choice']
        if not score:
            continue
        lines.append(
            f'| {one["name"]} | {score["rows"]} | {score["mape"]:.1%} ({score["low"]:.1%} to {score["high"]:.1%}) '
            f'| {score["median"]:.1%} | {score["p90"]:.1%} | {score["bias"]:+.1%} | {null["mape"]:.1%} '
            f'| {choice["regret"]:.1%} of {choice["groups"]} groups | {choice["ordered"]} of {choice["apart"]} |'
        )
    return lines


def parts(answer: dict[str, Any], rows: dict[str, Row]) -> list[str]:
    """The same for rows on one node and on several."""
    lines = ['', '| part | rows | mean error | null model |', '|---|---|---|---|']
    for one in answer['sets']:
        scored = [found for found in one['rows'] if not found['fitting']]
        for name, many in (('one node', False), ('several nodes', True)):
            part = [found for found in scored if (rows[found['id']].whole('n_gpus') > 8) == many]
            if part and len(part) < len(scored):
                mean = sum(abs(found['predicted'] / found['measured'] - 1) for found in part) / len(part)
                null = sum(abs(found['null'] / found['measured'] - 1) for found in part) / len(part)
                lines.append(f'| {one["name"]}, {name} | {len(part)} | {mean:.1%} | {null:.1%} |')
    return lines


def pairs_of(answer: dict[str, Any], rows: dict[str, Row], *, fitting: bool) -> dict[str, list[Pair]]:
    """The predictions of rows of each set, those for fitting or those that are scored."""
    return {
        one['name']: [
            Pair(rows[it['id']], *(it[key] for key in ('predicted', 'null', 'stack', 'device', 'bound', 'streaming')))
            for it in one['rows']
            if it['fitting'] == fitting
        ]
        for one in answer['sets']
    }


def intervals(answer: dict[str, Any], rows: dict[str, Row]) -> list[str]:
    """Write hw_profiles/intervals.csv of the rows for fitting; whether the others lie within, a row a set."""
    fitted = [pair for pairs in pairs_of(answer, rows, fitting=True).values() for pair in pairs]
    known = spreads_of(fitted)
    (profile_folder() / TABLE).write_text(written(known), encoding='utf-8')
    lines = [
        '',
        '| 80 % intervals | rows | within | 95 % range of 80 % | by model | half-width, median | mean error |',
        '|---|---|---|---|---|---|---|',
    ]
    for name, pairs in pairs_of(answer, rows, fitting=False).items():
        told, within, width = covered(pairs, known)
        if not told:
            continue
        models = Counter(pair.row.shape for pair in pairs)
        # Rows of a model that err as one count for fewer: (Σ n)² / Σ n².
        effective = len(pairs) ** 2 / sum(count**2 for count in models.values())
        mean = sum(abs(pair.error) for pair in pairs) / len(pairs)
        spans = f'{_span(told)} | {_span(min(told, effective))}'
        lines.append(
            f'| {name} | {told} of {len(models)} models | {within / told:.0%} | {spans} | {width:.1%} | {mean:.1%} |'
        )
    head = '| framework left out whole | rows | within | half-width, median | with it in |'
    lines += ['', head, '|---|---|---|---|---|']
    scored = [pair for pairs in pairs_of(answer, rows, fitting=False).values() for pair in pairs]
    for name in sorted({pair.row.of for pair in fitted}):
        told, within, width, own = left_out(fitted, scored, name)
        lines.append(f'| {name} | {told} | {within / told:.0%} | {width:.1%} | {own:.1%} |')
    return lines


def _span(rows: float) -> str:
    """Between which shares 95 % of so many independent rows lie, where 80 % of all do."""
    reach = 1.96 * sqrt(LEVEL * (1 - LEVEL) / rows)
    return f'{LEVEL - reach:.0%} to {min(1, LEVEL + reach):.0%}'


def without_clocks(cluster: Cluster) -> Cluster:
    device = replace(cluster.profile.device, sustained=None)
    return replace(cluster, profile=replace(cluster.profile, device=device))


def one_clock(cluster: Cluster) -> Cluster:
    return replace(cluster, profile=replace(cluster.profile, device=replace(cluster.profile.device, power_bound=False)))


def waiting(cluster: Cluster) -> Cluster:
    assert cluster.stack
    return replace(cluster, stack=replace(cluster.stack, waiting=True))


EVERY = Effects()
VARIANTS = {
    'all': (lambda cluster: cluster, EVERY),
    'without kernels, passes, attention and clocks of the stack': (
        lambda cluster: cluster,
        replace(EVERY, framework=False),
    ),
    'without clocks under load': (without_clocks, EVERY),
    'one clock whatever a step does': (one_clock, EVERY),
    'without waits of the host': (lambda cluster: cluster, replace(EVERY, host_waits=False)),
    'without the host': (lambda cluster: cluster, replace(EVERY, launch=False)),
    'messages that wait slow kernels': (waiting, EVERY),
    'without the stack': (lambda cluster: replace(cluster, stack=None), EVERY),
}


def chosen(rows: list[Row]) -> list[Row]:
    """The few rows of a set with the smallest sha256 of their id."""
    small = [row for row in rows if row.seconds and row.whole('n_gpus') <= MOST_DEVICES]
    return sorted(small, key=lambda row: sha256(row.name.encode()).digest())[:EACH]


def effects() -> list[str]:
    """Each effect left out alone: the mean error on a few rows of each set."""
    rows = read_rows(measured_folder())
    sets = sorted({row.of for row in rows})
    benches = {name: bench_of(chosen([row for row in rows if row.of == name])) for name in sets}
    heads = [f'{name} ({len(benches[name].rows)})' for name in sets]
    lines = [f'| | {" | ".join(heads)} |', f'|---|{"---|" * len(sets)}']
    for name, (change, on) in VARIANTS.items():
        errors = [_mean(benches[of], change, on) for of in sets]
        lines.append(f'| {name} | {" | ".join(f"{error:.1%}" for error in errors)} |')
    return lines


def _mean(bench: Bench, change: Any, on: Effects) -> float:
    found = []
    for row, case in zip(bench.rows, bench.cases, strict=True):
        cluster = under_load(case.program, change(case.cluster))
        step = followed(case.program, Pricer(case.program, cluster).costs(on), 2).step
        found.append(abs(step / row.seconds - 1))
    return sum(found) / len(found) if found else exp(0.0) - 1


def keep(answer: dict[str, Any]) -> list[str]:
    """Write every row's prediction; what changed in each set since they were last written, in lines."""
    before = {line['id']: float(line['predicted']) for line in read_csv(KEPT)}
    lines, told = ['set,id,measured,predicted'], []
    for one in answer['sets']:
        rows = one['rows']
        lines += [f'{one["name"]},{row["id"]},{row["measured"]:.6g},{row["predicted"]:.6g}' for row in rows]
        moved = {row['id']: row['predicted'] / before[row['id']] - 1 for row in rows if row['id'] in before}
        most = sorted((name for name in moved if abs(moved[name]) > CLOSE), key=lambda name: -abs(moved[name]))
        shown = ', '.join(f'{name} {moved[name]:+.1%}' for name in most[:5])
        told.append(f'{one["name"]}: {len(most)} of {len(rows)} rows changed {shown}'.rstrip())
    KEPT.write_text('\n'.join([*lines, '']), encoding='utf-8')
    return told


def trend(answer: dict[str, Any]) -> list[str]:
    """Write the mean errors of today where one changed; the table of all days."""
    days = read_csv(TREND)
    now = {one['name']: f'{one["score"]["mape"]:.1%}' for one in answer['sets'] if one['score']}
    if not days or any(days[-1][name] != error for name, error in now.items()):
        days = [*(line for line in days if line['day'] != str(date.today())), {'day': str(date.today()), **now}]
    cells = [list(days[-1]), *(list(line.values()) for line in days)]
    TREND.write_text('\n'.join([*map(','.join, cells), '']), encoding='utf-8')
    head, *rows = [f'| {" | ".join(line)} |' for line in cells]
    return [head, '|---' * len(cells[0]) + '|', *rows]


def put(mark: str, lines: Iterable[str], page: Path = PAGE) -> None:
    """Write lines between two marks of a page."""
    begin, end = f'<!-- {mark} -->', f'<!-- end of {mark} -->'
    # Lines may take minutes to make, in which the page may change.
    body = '\n'.join(lines)
    text = page.read_text(encoding='utf-8')
    page.write_text(f'{text.split(begin)[0]}{begin}\n\n{body}\n\n{end}{text.split(end)[1]}', encoding='utf-8')


def main() -> None:
    """Scores, then effects; `--scores` or `--effects` asks for one of them."""
    words = sys.argv[1:]
    rows = read_rows(measured_folder())
    if '--effects' not in words:
        files = [word for word in words if not word.startswith('--')]
        told = json.loads(Path(files[0]).read_text(encoding='utf-8')) if files else to_dict(answers(outcomes(rows, 2)))
        by = {row.name: row for row in rows}
        put('sets', table(told), PAGE.parent.parent / 'accuracy.md')
        put('validate', [*table(told), *parts(told, by), *intervals(told, by)])
        put('trend', trend(told))
        print(*keep(told), sep='\n')
    if '--scores' not in words:
        put('effects', effects())


if __name__ == '__main__':
    main()
