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
from statistics import fmean
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
from tests.proof import table

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


def scores(answer: dict[str, Any]) -> list[str]:
    """Scores a set, on rows that nothing was fitted on."""
    heads = 'set | rows | mean error, 95 % interval | median | 90th percentile | bias | null model | regret | in order'
    lines = []
    for one in answer['sets']:
        if score := one['score']:
            null, choice = one['null'], one['choice']
            mean = f'{score["mape"]:.1%} ({score["low"]:.1%} to {score["high"]:.1%})'
            shares = f'{score["median"]:.1%}', f'{score["p90"]:.1%}', f'{score["bias"]:+.1%}', f'{null["mape"]:.1%}'
            regret = f'{choice["regret"]:.1%} of {choice["groups"]} groups'
            lines.append(
                (one['name'], score['rows'], mean, *shares, regret, f'{choice["ordered"]} of {choice["apart"]}')
            )
    return table(heads, lines)


def parts(answer: dict[str, Any], rows: dict[str, Row]) -> list[str]:
    """The same for rows on one node and on several."""
    lines = []
    for one in answer['sets']:
        scored = [found for found in one['rows'] if not found['fitting']]
        for name, many in (('one node', False), ('several nodes', True)):
            part = [found for found in scored if (rows[found['id']].whole('n_gpus') > 8) == many]
            if part and len(part) < len(scored):
                mean, null = (fmean(abs(found[by] / found['measured'] - 1) for found in part)
                              for by in ('predicted', 'null'))  # fmt: skip
                lines.append((f'{one["name"]}, {name}', len(part), f'{mean:.1%}', f'{null:.1%}'))
    return ['', *table('part | rows | mean error | null model', lines)]


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
    lines, left = [], []
    for name, pairs in pairs_of(answer, rows, fitting=False).items():
        told, within, width = covered(pairs, known)
        if not told:
            continue
        models = Counter(pair.row.shape for pair in pairs)
        # Rows of a model that err as one count for fewer: (Σ n)² / Σ n².
        effective = len(pairs) ** 2 / sum(count**2 for count in models.values())
        spans = _span(told), _span(min(told, effective))
        ends = f'{width:.1%}', f'{fmean(abs(pair.error) for pair in pairs):.1%}'
        lines.append((name, f'{told} of {len(models)} models', f'{within / told:.0%}', *spans, *ends))
    scored = [pair for pairs in pairs_of(answer, rows, fitting=False).values() for pair in pairs]
    for name in sorted({pair.row.of for pair in fitted}):
        told, within, width, own = left_out(fitted, scored, name)
        left.append((name, told, f'{within / told:.0%}', f'{width:.1%}', f'{own:.1%}'))
    heads = '80 % intervals | rows | within | 95 % range of 80 % | by model | half-width, median | mean error'
    of_left = 'framework left out whole | rows | within | half-width, median | with it in'
    return ['', *table(heads, lines), '', *table(of_left, left)]


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
    heads = '| ' + ' | '.join(f'{name} ({len(benches[name].rows)})' for name in sets)
    return table(heads, (
        (name, *(f'{_mean(benches[of], change, on):.1%}' for of in sets)) for name, (change, on) in VARIANTS.items()
    ))  # fmt: skip


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
    return table(' | '.join(cells[0]), cells[1:])


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
        put('sets', scores(told), PAGE.parent.parent / 'accuracy.md')
        put('validate', [*scores(told), *parts(told, by), *intervals(told, by)])
        put('trend', trend(told))
        print(*keep(told), sep='\n')
    if '--scores' not in words:
        put('effects', effects())


if __name__ == '__main__':
    main()
