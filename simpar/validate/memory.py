"""Memory: predicted and measured bytes of the last rank, at the peak and at the end of a step, a plan at a time."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from simpar import document, profiles
from simpar.errors import SimparError, refusal
from simpar.lower import lower
from simpar.memory import Framework, RankMemory, memory, sequential
from simpar.program import Program
from simpar.schedule import schedule_of
from simpar.validate import columns, settings
from simpar.validate.rows import Row

PEAK: Final = 'peak_allocated_bytes'
END: Final = 'end_of_step_allocated_bytes'
OF_ALL: Final = ('gradients', 'gradient_copies', 'boundary', 'mask')
"""Facts that are no lists."""
NEAR: Final = 0.04
LOW: Final = 0.03
PHASE: Final = 'run_phase'
"""Which part of a run a row is of: a later one loads a checkpoint, which the peak, never reset, holds too."""
MODEL: Final = (
    *('hardware', 'n_gpus', 'flags', 'n_layers', 'hidden', 'heads', 'ffn', 'n_experts', 'seq', 'vocab'),
    *('micro_batch', 'global_batch'),
)
"""Columns that tell a plan on devices; other images, and tests of other names, are further measurements of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPair:
    """A plan on devices: measured bytes, the median over its rows, and predicted ones."""

    row: Row
    rows: int
    measured_peak: float
    measured_end: float
    peak: int
    end: int
    at: str

    @property
    def peak_error(self) -> float:
        """Of the peak."""
        return self.peak / self.measured_peak - 1

    @property
    def end_error(self) -> float:
        """Of the end of a step."""
        return self.end / self.measured_end - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryScore:
    """Shares: median and worst of errors' sizes, plans near the peak, plans whose peak is predicted too low."""

    plans: int
    peak: float
    worst: float
    bias: float
    near: float
    low: float
    end: float


def program_of(row: Row) -> Program:
    """The program of a row; raises ``Skipped`` for what is not modelled."""
    # Any cluster: a program knows none, and its memory is taken in issue order.
    schedule = schedule_of(document.Tree(root=settings.plan_tree(row, 'a100-sxm-8'), origins={(): row.name}))
    return lower(schedule.workload, schedule.plan, row.whole('n_gpus'))


def held_of(row: Row, program: Program, without: Collection[str] = ()) -> RankMemory:
    """What the last rank of a row holds, by the row's program.

    Arguments: ``without``, names of facts of the stack to leave out.
    Ranks do their ops in issue order, as an allocator sees them: no device's seconds are needed.
    """
    facts = profiles.load_stack(columns.stack_name(row)).memory
    framework = None
    if facts:
        framework = Framework(
            facts=facts, device=row.text('hardware'), options=settings.options(row), without=frozenset(without)
        )
    return memory(sequential(program), framework=framework).rank(program.world - 1)


def known_facts(names: Iterable[str]) -> frozenset[str]:
    """Names of facts that some stack has; raises ``ScheduleError`` for others."""
    wanted = frozenset(names)
    all_facts = set(OF_ALL)
    for stack in profiles.stack_names():
        facts = profiles.load_stack(stack).memory
        all_facts |= {*facts.workspaces, *facts.beside} if facts else set()
    wrong = sorted(wanted - all_facts)
    if wrong:
        what = f'no stack has such facts (got {", ".join(wrong)[:100]})'
        raise refusal('--without', what, f'some of {", ".join(sorted(all_facts))}')
    return wanted


def measured(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows that tell both numbers, by plan and devices; rows that are marked partial make a group of their own.

    Of a plan whose first phase was measured, no later one counts.
    """
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        if _number(row.text(PEAK)) and _number(row.text(END)):
            groups.setdefault(
                (row.text('completeness') == 'partial', *(row.text(column) for column in MODEL)), []
            ).append(row)
    return [[row for row in group if row.text(PHASE) in ('', '1')] or group for group in groups.values()]


def _number(word: str) -> float:
    """A cell as a number of bytes; 0 for what is none."""
    try:
        return max(0.0, float(word or 0))
    except ValueError:
        return 0.0


def memory_pairs(
    rows: Sequence[Row], without: Collection[str] = (), tell: Callable[[int, int], None] | None = None
) -> tuple[list[MemoryPair], dict[str, int]]:
    """Every plan's numbers, and reasons why plans are skipped, each with their count."""
    pairs: list[MemoryPair] = []
    groups = measured(rows)
    skipped = Counter({'no measured bytes': len(rows) - sum(map(len, groups))})
    for number, group in enumerate(groups, start=1):
        try:
            held = held_of(group[0], program_of(group[0]), without)
        except (ValueError, ZeroDivisionError) as wrong:
            reason = f'{group[0].name}: a cell or flag is not a number as it should be ({wrong})'[:200]
            skipped[reason] += 1
        except (columns.Skipped, SimparError) as why:
            reason = str(why).splitlines()[0][:200].removeprefix(f'{group[0].name}: ')
            skipped[reason] += 1
        else:
            pairs.append(pair_of(group, held))
        if tell:
            tell(number, len(groups))
    return pairs, dict((+skipped).most_common())


def pair_of(group: Sequence[Row], held: RankMemory) -> MemoryPair:
    """What rows of a plan measured beside what its last rank is predicted to hold."""
    return MemoryPair(
        row=group[0],
        rows=len(group),
        measured_peak=median(row.whole(PEAK) for row in group),
        measured_end=median(row.whole(END) for row in group),
        peak=held.peak_bytes,
        end=int(held.lives.bytes[held.lives.always | held.lives.before].sum()),
        at=held.peak.action,
    )


def memory_score(pairs: Sequence[MemoryPair]) -> MemoryScore | None:
    """The score of some plans; None without any."""
    if not pairs:
        return None
    errors = [pair.peak_error for pair in pairs]
    return MemoryScore(
        plans=len(pairs),
        peak=median(map(abs, errors)),
        worst=max(map(abs, errors)),
        bias=median(errors),
        near=sum(abs(error) <= NEAR for error in errors) / len(errors),
        low=sum(error < -LOW for error in errors) / len(errors),
        end=median(abs(pair.end_error) for pair in pairs),
    )
