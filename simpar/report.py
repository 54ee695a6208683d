"""A prediction as a person and as a program read it: one screen, and one JSON object; docs/reading.md explains both."""

from __future__ import annotations

import io
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from simpar import interval, keys, metrics, profiles, units
from simpar.headline import headline, headline_of_rates, maybe_too_large, run_by, short, short_time, too_large
from simpar.memory import beside_summary, memory_to_dict, peak_summary
from simpar.predict import ROWS, Prediction

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

FORMAT = 'simpar prediction 1'
_MOST_RANKS = 4
"""How many distinct ranks the screen shows the streams of."""
_SHOWN = 0.005
"""Of a step: a smaller share of it has no row of its own."""
_MOST_PIPELINE_RANKS = 8
"""How many pipeline ranks the screen shows: of more, the first and the last."""


def render(prediction: Prediction, *, colour: bool | None = None) -> str:
    """The answer on one screen; ``colour`` unless given only on a terminal, and if NO_COLOR is not set."""
    baseline = prediction.baseline
    parts: list[RenderableType] = [answer(prediction), *prediction.beside_stack, *interval_lines(prediction)]
    parts += [line for line in (keys.without_effect_line(prediction.without_effect),) if line]
    parts += ['', figures(prediction)]
    if baseline:
        parts += ['', why(prediction, baseline)]
    if metrics.is_pipeline(prediction.program):
        parts += ['', _stages(prediction)]
    parts += ['', streams(prediction)]
    parts += ['', prediction.critical_path.summary]
    parts.append(f'Memory: {peak_summary(prediction.memory.fullest, prediction.room)}.')
    if beside := beside_summary(prediction.memory.peak, prediction.room):
        parts.append(beside)
    parts += [line for line in (grades_line(prediction),) if line]
    parts += [f'Note: {note}' for note in prediction.notes]
    return render_parts(parts, colour=colour)


def brief(prediction: Prediction, notes: Sequence[str] = ()) -> str:
    """The answer for who only wants that: sentence, interval, six figures, why in words, and one note.

    Argument: ``notes`` that count most, before those of the prediction.
    """
    baseline = prediction.baseline
    # What a file has otherwise than its framework changes what the headline is of.
    otherwise = [line for line in prediction.beside_stack if not line.startswith(_BY_RULE)]
    lines = [answer(prediction, exact=False), *otherwise, *interval_lines(prediction), '']
    every = [line for line in (keys.without_effect_line(prediction.without_effect),) if line]
    every = [*notes, *every, *prediction.notes, *(line for line in prediction.beside_stack if line not in otherwise)]
    tail = [why_in_words(prediction, baseline)] if baseline else []
    if every:
        more = f' ({len(every) - 1} more: --full)' if len(every) > 1 else ''
        tail.append(f'Note: {every[0]}{more}')
    return render_parts([*lines, six(prediction), *(['', *tail] if tail else [])])


def six(prediction: Prediction) -> Table:
    """The figures that most readers want; one that is nothing on all sides has no row."""
    sides = [prediction, *([prediction.baseline] if prediction.baseline else [])]
    rows = table('', *(side.name for side in sides))
    steady = [side.metrics.steady for side in sides]
    idle = 'bubble and idle' if metrics.is_pipeline(prediction.program) else 'idle'
    parts = (('computing', 'compute'), ('exposed communication', 'exposed'), (idle, 'idle'))
    rows.add_row('step', *(short_time(side.step) for side in sides))
    for name, figure in parts:
        shares = [getattr(m, figure) / m.step for m in steady]
        if max(shares) >= _SHOWN:
            times = (short_time(getattr(m, figure)) for m in steady)
            rows.add_row(name, *(f'{time} {share * 100:3.0f} %' for time, share in zip(times, shares, strict=True)))
    rows.add_row('memory at the peak', *(units.format_size(short(side.memory.peak)) for side in sides))
    if any(side.memory.host for side in sides):
        rows.add_row('on the host', *(units.format_size(short(side.memory.host)) for side in sides))
    rates = [side.throughput.rate(side.step) for side in sides if side.throughput]
    if len(rates) == len(sides) and prediction.throughput:
        unit = f'{prediction.throughput.unit} a second'
        rows.add_row(unit, *(units.format_count(short(rate)) for rate in rates))
    return rows


_BY_RULE = 'The file names no framework'
_IN_WORDS = {row['name']: row['saves'] for row in ROWS}
_COUNTS = 0.05
"""Of the largest effect: smaller ones are told together."""


def why_in_words(prediction: Prediction, baseline: Prediction) -> str:
    """The gain by its largest effects, in a sentence whose seconds add up."""
    rows = [row for row in prediction.explanation if row.seconds]
    if not rows:
        return ''
    least = _COUNTS * max(abs(row.seconds) for row in rows)
    large = sorted((row for row in rows if abs(row.seconds) >= least), key=lambda row: -abs(row.seconds))
    sides = {
        verb: [f'{_IN_WORDS[row.effect]} {short_time(abs(row.seconds))}' for row in large if (row.seconds > 0) == saves]
        for verb, saves in (('saved by', True), ('lost to', False))
    }
    # What weighs most is said first.
    ordered = [*sides.items()][:: 1 if large[0].seconds > 0 else -1]
    text = '; '.join(f'{verb} {", ".join(words)}' for verb, words in ordered if words)
    left = baseline.step - prediction.step - sum(row.seconds for row in large)
    small = f'; all else {"saves" if left > 0 else "takes"} {short_time(abs(left))}' if abs(left) >= least / 5 else ''
    return f'Why: {text}{small}.'


def answer(prediction: Prediction, *, exact: bool = True) -> str:
    """The answer in a sentence; that a plan does not fit comes first, as no other figure counts then.

    Arguments: ``exact``, as of ``headline``.
    """
    baseline = prediction.baseline
    below = (baseline.name, baseline.step) if baseline else None
    text = headline((prediction.name, prediction.step), below, exact=exact)
    mine, other = prediction.throughput, baseline.throughput if baseline else None
    if baseline and mine and other and mine.work != other.work:
        rates = (mine.rate(prediction.step), other.rate(baseline.step))
        text = headline_of_rates((prediction.name, rates[0]), (baseline.name, rates[1]), mine.unit)
    # The processes of the executor on CPUs are all that there is: their profile was measured through torch itself.
    if framework := run_by([side.title for side in (prediction, baseline) if side], [prediction.profile.library.name]):
        text += f', {framework}'
    misfits = [_misfit(side) for side in (prediction, baseline) if side and not side.fits]
    return f'{"; ".join(misfits)}. With enough memory: {text}' if misfits else text


def _misfit(side: Prediction) -> str:
    held, size = side.room.taken(side.memory.peak), side.room.size
    if side.fits is None:
        return maybe_too_large(side.name, held, size, side.memory_margin)
    return too_large(side.name, held, size)


def render_parts(parts: Iterable[RenderableType], *, colour: bool | None = None, width: int = 100) -> str:
    """Lines and tables below one another, the first bold; arguments as of ``render``."""
    from rich.console import Console

    # NO_COLOR is a convention of terminal programs; a pipe gets plain text anyway.
    coloured = (sys.stdout.isatty() and not os.environ.get('NO_COLOR')) if colour is None else colour
    text = io.StringIO()
    console = Console(
        file=text,
        width=width,
        force_terminal=coloured,
        # In a notebook rich would show each part by itself, beside the text that is asked for.
        force_jupyter=False,
        color_system='standard' if coloured else None,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    # The first part is the answer itself.
    for index, part in enumerate(parts):
        console.print(part, style='bold' if index == 0 else None)
    # rich fills lines with blanks up to the width.
    return ''.join(f'{line.rstrip()}\n' for line in text.getvalue().splitlines())


def table(*columns: str) -> Table:
    """A table without lines; the first column is text, the others figures."""
    from rich.table import Table

    empty = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style='bold')
    for index, column in enumerate(columns):
        empty.add_column(column, justify='right' if index else 'left')
    return empty


def to_dict(prediction: Prediction) -> dict[str, Any]:
    """The answer as one object; seconds, and shares from 0 to 1."""
    from simpar import __version__

    return {
        'format': FORMAT,
        'simpar': __version__,
        **_answer(prediction),
        'stack': prediction.stack or profiles.NONE,
        'beside_stack': list(prediction.beside_stack),
        'gain': prediction.gain,
        'gain_noise': prediction.gain_noise,
        'without_effect': keys.without_effect_json(prediction.without_effect),
        'explanation': [asdict(row) for row in prediction.explanation],
        'baseline': _answer(prediction.baseline) if prediction.baseline else None,
    }


def interval_lines(prediction: Prediction) -> Iterator[str]:
    """Where measured steps like this one lie, and whether the gain is larger than such predictions are known to."""
    band = prediction.interval
    if not prediction.stack:
        return
    if band is None:
        yield 'No interval: no published step was scored.'
        return
    low, high, lacking = short_time(band.low), short_time(band.high), band.spread.lacking
    yield f'{interval.LEVEL * 100:.0f} % of such steps lie within {low} to {high}: {band.spread.words}.'
    if lacking and not band.spread.anchored:
        device, bound = band.spread.device, f'a step bound by the {band.spread.bound}'
        own = {'framework': prediction.stack, 'device': device, 'bound': bound}
        what = ', and none of '.join(own.get(name, f'{prediction.stack} on {device}') for name in lacking)
        yield f'No published step of {what} was scored, so this interval is by rule (docs/accuracy.md).'
    noise = prediction.gain_noise
    if prediction.gain is not None and noise is not None and abs(prediction.gain) < noise:
        yield f'The gain is within noise: of two such plans the ratio is known to ± {_percent(noise)}.'


def grades_line(prediction: Prediction) -> str:
    """How well the numbers behind the answer are known."""
    # Below this a share would be shown as 0.0 %.
    shares = [f'{_percent(share)} {grade}' for grade, share in prediction.grades.items() if share >= 0.0005]
    return f'Grades of the numbers (share of the isolated seconds): {", ".join(shares)}.' if shares else ''


def figures(prediction: Prediction) -> Table:
    """Plan and baseline, figure by figure."""
    return figures_of([prediction, prediction.baseline] if prediction.baseline else [prediction])


def figures_of(sides: Sequence[Prediction]) -> Table:
    """Predictions side by side, figure by figure; means over the ranks."""
    rows = table('', *(side.name for side in sides))
    steady = [side.metrics.steady for side in sides]
    rows.add_row('step', *(units.format_time(side.step) for side in sides))
    rows.add_row('first step, from cold', *(units.format_time(side.cold_step) for side in sides))
    rows.add_row('computing', *(_of(m.compute, m.step) for m in steady))
    rows.add_row('exposed communication', *(_of(m.exposed, m.step) for m in steady))
    # A single communicator's share is the whole of the row above; several that run at once sum to more.
    names = dict.fromkeys(name for m in steady for name in _exposed_by(m))
    for name in names if len(names) > 1 else ():
        rows.add_row(f'  while {name} runs', *(_of(_exposed_by(m).get(name, 0.0), m.step) for m in steady))
    # Where no rank waits in a collective, idle and bubble are one figure and stand in one row.
    differ = any(m.bubble != m.idle for m in steady)
    staged = [metrics.is_pipeline(side.program) for side in sides]
    if differ or not all(staged):
        rows.add_row('idle', *(_of(m.idle, m.step) for m in steady))
    if differ or any(staged):
        rows.add_row('bubble', *(_of(m.bubble, m.step) for m in steady))
    # A device that waits for its host is neither in a bubble nor short of work.
    if any(m.host >= _SHOWN * m.step for m in steady):
        rows.add_row('waiting for the host', *(_of(m.host, m.step) for m in steady))
    rows.add_row('overlap', *(_percent(m.overlap) if math.isfinite(m.overlap) else 'no communication' for m in steady))
    rows.add_row('memory at the peak', *(units.format_size(side.memory.peak) for side in sides))
    for name, figures in _rates(sides):
        rows.add_row(name, *figures)
    return rows


def _rates(sides: Sequence[Prediction]) -> Iterator[tuple[str, list[str]]]:
    """What engineers quote of a step; a baseline of another batch does other work in it."""
    pairs = [(side.throughput, side.step) for side in sides if side.throughput]
    if len(pairs) < len(sides):
        return
    unit = pairs[0][0].unit
    yield f'{unit} a second', [units.format_count(each.rate(step)) for each, step in pairs]
    shares = (each.mfu(step) for each, step in pairs)
    percents = ('' if share is None else f' {share * 100:3.0f} %' for share in shares)
    rates = (f'{each.flops(step) / 1e12:.4g}' for each, step in pairs)
    yield 'model TFLOP/s a device, MFU', [rate + share for rate, share in zip(rates, percents, strict=True)]


def why(prediction: Prediction, baseline: Prediction) -> Table:
    """The gain in seconds that add up."""
    rows = table('why', 'saves', prediction.name, baseline.name)
    for row in prediction.explanation:
        rows.add_row(row.effect, _signed(row.seconds), units.format_time(row.step), units.format_time(row.baseline))
    rows.add_row('together', _signed(baseline.step - prediction.step), '', '', style='bold')
    return rows


def streams(prediction: Prediction) -> Table:
    """The streams: of a pipeline their means over the ranks, else those of the ranks that differ."""
    return _mean_streams(prediction) if metrics.is_pipeline(prediction.program) else _streams(prediction)


def _streams(prediction: Prediction) -> Table:
    """Every stream of the ranks that differ."""
    steady = prediction.metrics.steady
    rows = table('stream', 'busy', 'waiting for peers', 'idle', 'ops')
    for rank in steady.ranks[:_MOST_RANKS]:
        prefix = f'rank {rank.rank} ' if len(steady.ranks) > 1 else ''
        for stream in rank.streams:
            seconds = (stream.busy, stream.waiting, stream.idle)
            rows.add_row(f'{prefix}{stream.stream}', *(_of(s, steady.step) for s in seconds), str(stream.ops))
    if len(steady.ranks) > _MOST_RANKS:
        rows.add_row(f'and {len(steady.ranks) - _MOST_RANKS} more ranks: see --json')
    return rows


def _mean_streams(prediction: Prediction) -> Table:
    """Streams of the same name, averaged over all ranks."""
    steady = prediction.metrics.steady
    rows = table('stream, mean over the ranks', 'busy', 'waiting for peers', 'idle', 'ops')
    ranks = sum(rank.ranks for rank in steady.ranks)
    means: dict[str, list[float]] = {}
    for rank in steady.ranks:
        for stream in rank.streams:
            mean = means.setdefault(stream.stream, [0.0, 0.0, 0.0])
            for index, value in enumerate((stream.busy, stream.waiting, stream.ops)):
                mean[index] += value * rank.ranks / ranks
    for name, (busy, waiting, ops) in means.items():
        seconds = (busy, waiting, steady.step - busy - waiting)
        rows.add_row(name, *(_of(s, steady.step) for s in seconds), f'{ops:.0f}')
    return rows


def _stages(prediction: Prediction) -> Table:
    """The pipeline ranks one by one."""
    rows = table('pipeline rank', 'computing', 'exposed communication', 'bubble', 'memory at the peak')
    places = pipeline_ranks(prediction)
    step = prediction.metrics.steady.step
    half = _MOST_PIPELINE_RANKS // 2
    left_out = len(places) - 2 * half
    for number, place in enumerate(places):
        # The ends are the ranks that differ most: first and last stage.
        if left_out > 0 and half <= number < len(places) - half:
            if number == half:
                rows.add_row(f'{left_out} more: see --json')
            continue
        stages = ', '.join(map(str, place['stages']))
        rows.add_row(
            f'{number}: stage{"s" if len(place["stages"]) > 1 else ""} {stages}',
            *(_of(place[figure], step) for figure in ('compute', 'exposed', 'bubble')),
            units.format_size(place['memory']),
        )
    return rows


def pipeline_ranks(prediction: Prediction) -> list[dict[str, Any]]:
    """Means over the ranks that do the same stages, in seconds, and the highest memory of them in bytes."""
    program, steady = prediction.program, prediction.metrics.steady
    places = []
    for stages, roles in metrics.by_stages(program).items():
        mine = tuple(rank for rank in steady.ranks if any(program.role(rank.rank) is role for role in roles))
        window = metrics.StepMetrics(step=steady.step, ranks=mine)
        figures = {name: getattr(window, name) for name in ('compute', 'exposed', 'idle', 'bubble')}
        memory = max(prediction.memory.rank(rank.rank).peak_bytes for rank in mine)
        ranks = sum(rank.ranks for rank in mine)
        places.append({'stages': list(stages), 'rank': mine[0].rank, 'ranks': ranks, **figures, 'memory': memory})
    return places


def _interval(band: interval.Interval | None) -> dict[str, Any] | None:
    return {'share': interval.LEVEL, 'low': band.low, 'high': band.high, **asdict(band.spread)} if band else None


def _answer(prediction: Prediction) -> dict[str, Any]:
    """One program's answer, without the baseline's."""
    path = prediction.critical_path
    return {
        'name': prediction.name,
        'program': prediction.program.hash,
        'ranks': prediction.program.world,
        'step': prediction.step,
        'interval': _interval(prediction.interval),
        'cold_step': prediction.cold_step,
        'steady': _window(prediction.metrics.steady),
        'cold': _window(prediction.metrics.cold),
        'critical_path': {'words': path.summary, 'shares': path.shares, 'stretched': path.stretched},
        'grades': prediction.grades,
        'fits': prediction.fits,
        'throughput': _throughput(prediction),
        'pipeline': pipeline_ranks(prediction) if metrics.is_pipeline(prediction.program) else None,
        'memory': memory_to_dict(prediction.memory, prediction.room),
        'notes': list(prediction.notes),
    }


def _throughput(prediction: Prediction) -> dict[str, Any] | None:
    """Rates of a step: a second, FLOP/s, and shares from 0 to 1."""
    each, step = prediction.throughput, prediction.step
    if each is None:
        return None
    return {
        'samples': each.samples,
        'tokens': each.tokens or None,
        'per_second': each.rate(step),
        'per_second_of': each.unit,
        'per_second_and_device': each.rate(step) / each.devices,
        'model_flops': each.model_flops,
        'hardware_flops': each.hardware_flops,
        'model_flops_per_second_and_device': each.flops(step),
        'mfu': each.mfu(step),
        'hfu': each.hfu(step),
    }


def _window(window: metrics.StepMetrics) -> dict[str, Any]:
    """Means over the ranks, and every rank that differs."""
    return {
        'seconds': window.step,
        **{name: getattr(window, name) for name in ('compute', 'communication', 'exposed', 'idle', 'host', 'bubble')},
        'overlap': _finite(window.overlap),
        'exposed_by': _exposed_by(window),
        'ranks': [_rank(rank) for rank in window.ranks],
    }


def _rank(rank: metrics.RankMetrics) -> dict[str, Any]:
    return {
        'rank': rank.rank,
        'stands_for': rank.ranks,
        **{name: getattr(rank, name) for name in ('compute', 'communication', 'exposed', 'idle', 'bubble')},
        'overlap': _finite(rank.overlap),
        'phases': rank.phases,
        'exposed_by': rank.exposed_by,
        'streams': [asdict(stream) for stream in rank.streams],
    }


def _exposed_by(window: metrics.StepMetrics) -> dict[str, float]:
    """Mean seconds exposed by communicator."""
    names: Iterator[str] = (name for rank in window.ranks for name in rank.exposed_by)
    return {name: window.mean(lambda rank, name=name: rank.exposed_by.get(name, 0.0)) for name in dict.fromkeys(names)}  # type: ignore[misc]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _of(seconds: float, total: float) -> str:
    """Seconds and their share of a step."""
    return f'{units.format_time(seconds)} {seconds / total * 100:3.0f} %' if seconds else '-'


def _percent(share: float) -> str:
    # 100.0 % would read as if it were measured to a thousandth.
    return f'{share * 100:.1f} %' if share < 0.9995 else f'{share * 100:.0f} %'


def _signed(seconds: float) -> str:
    return f'{"+" if seconds > 0 else "-"}{units.format_time(abs(seconds))}' if seconds else '0'
