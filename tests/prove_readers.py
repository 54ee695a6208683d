"""`make prove NAME=readers`: changed files of every kind, each read by its reader in a process that reads thousands.

    python tests/prove_readers.py --cases 100000 --keep out/readers --write docs/proofs/readers_proof.md
    python tests/prove_readers.py --only 4711      one case again, with its traceback; --first 20000 begins there
    python tests/prove_readers.py --commands --cases 10000 --seed 2026     the same of commands that read files

A case is wrong where anything but an error of simpar's own comes out, where it takes more CPU seconds than a bound, or
makes its process larger by more than a bound of bytes. A process that ends or stands still is named and replaced. With
`--keep` a run goes on where one of the same commit stopped.
"""

import argparse
import contextlib
import io
import json
import multiprocessing
import os
import random
import resource
import statistics
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, NamedTuple

from by_command import COMMANDS
from proof import TooLong, arguments, bounded, commit, end, page_head
from readers import READERS, Seed, case, put, seeds

ALL: Final = READERS | COMMANDS
STANDS: Final = 120
"""Seconds of the clock, in which a process that says nothing and computes nothing stands still."""
LEAST: Final = 0.1
"""CPU seconds that a process that waits for a processor has meanwhile."""
SPACE: Final = 2 * 2**30
"""Bytes of address space that a case may take beyond what its process has after all imports."""
GROWS: Final = 256 * 2**20
"""Bytes by which the largest size of the process may grow in one case."""
WRONG: Final = ('traceback', 'too long', 'too large', 'killed')
CHUNK: Final = 5000
"""Cases after which what is known is kept, and a new process begins."""


class Found(NamedTuple):
    """What became of a case."""

    number: int
    name: str
    outcome: str
    seconds: float
    grows: int
    said: str = ''


def main() -> int:
    """Read the cases in chunks, and write the page."""
    options = arguments(
        __doc__,
        seed=2027,
        cases=(100_000, 'up to this number'),
        first=(0, 'from this number'),
        readers=('', 'only these, with commas'),
        only=(int, 'read this case alone, and show it'),
        keep=(Path, 'a folder for what is known'),
        commands=(False, 'commands that read files, in place of readers'),
        write=Path,
    )
    of = COMMANDS if options.commands else READERS
    with tempfile.TemporaryDirectory() as folder:
        known = seeds(Path(folder), of)
    names = turns([name for name in of if not options.readers or name in options.readers.split(',')])
    if options.only is not None:
        print(read_case(known, options.seed, options.only, names, show=True))
        return 0
    found: list[Found] = []
    for begin in range(options.first, options.cases, CHUNK):
        file = options.keep / f'{commit()} {options.seed} {begin}.json' if options.keep else None
        if file is not None and file.exists():
            found += [Found(*one) for one in json.loads(file.read_text(encoding='utf-8'))]
            continue
        chunk = _chunk(known, options.seed, range(begin, min(begin + CHUNK, options.cases)), names)
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(chunk), encoding='utf-8')
        found += chunk
        print(f'{len(found):,} cases, {sum(one.outcome in WRONG for one in found)} wrong', file=sys.stderr, flush=True)
    text = page(found, options)
    return end(text, options.write, not any(one.outcome in WRONG for one in found), 1)


def turns(names: list[str]) -> list[str]:
    """The order in which readers take their turns: ten rounds of those that are not slow, one of those that are."""
    return [*[name for name in names if not ALL[name].slow] * 10, *(name for name in names if ALL[name].slow)]


def _chunk(known: dict[str, list[Seed]], seed: int, numbers: range, names: list[str]) -> list[Found]:
    """Cases in a process, and in a new one behind each that ended it."""
    found: list[Found] = []
    while len(found) < len(numbers):
        here, there = multiprocessing.Pipe(duplex=False)
        left = numbers[len(found) :]
        # Forked, so that nothing is imported again.
        process = multiprocessing.get_context('fork').Process(target=_work, args=(there, known, seed, left, names))
        process.start()
        there.close()
        begun = last = 0.0
        try:
            while len(found) < len(numbers):
                if here.poll(STANDS):
                    found.append(Found(*here.recv()))
                    _tell(found[-1])
                    begun = last = _spent(process.pid)
                    continue
                # On a busy machine little is computed, but something.
                now = _spent(process.pid)
                if now - last < LEAST or now - begun > 6 * ALL[names[numbers[len(found)] % len(names)]].seconds:
                    break
                last = now
        except EOFError:
            pass
        if len(found) < len(numbers):
            stands = process.is_alive()
            process.kill()
            process.join()
            number = numbers[len(found)]
            how = 'it stands still' if stands else f'it ended with {process.exitcode}'
            found.append(Found(number, names[number % len(names)], 'killed', float(STANDS) if stands else 0.0, 0, how))
            _tell(found[-1])
        process.join()
    return found


def _spent(process: int | None) -> float:
    """CPU seconds of a process."""
    words = Path(f'/proc/{process}/stat').read_text(encoding='utf-8').rpartition(')')[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf('SC_CLK_TCK')


def _tell(one: Found) -> None:
    if one.outcome in WRONG:
        print(json.dumps(one._asdict()), file=sys.stderr, flush=True)


def _work(pipe: Connection, known: dict[str, list[Seed]], seed: int, numbers: range, names: list[str]) -> None:
    """Read cases one after the other; what became of each goes into the pipe."""
    sys.stdout = sys.stderr = io.StringIO()
    for name in dict.fromkeys(names):
        # A good file of each first, so that imports count in no case.
        with contextlib.suppress(Exception), tempfile.TemporaryDirectory() as folder:
            put(Path(folder), known[name][0].files)
            ALL[name].read(Path(folder))
    has = int(Path('/proc/self/statm').read_text(encoding='utf-8').split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (has + SPACE, has + SPACE))
    for number in numbers:
        pipe.send(tuple(read_case(known, seed, number, names)))
    pipe.close()


def read_case(known: dict[str, list[Seed]], seed: int, number: int, names: list[str], *, show: bool = False) -> Found:
    """Read the case of a number; readers take turns."""
    from simpar.errors import SimparError

    name = names[number % len(names)]
    files = case(random.Random(f'{seed} {number}'), known, name)
    with tempfile.TemporaryDirectory(dir='/dev/shm' if Path('/dev/shm').is_dir() else None) as folder:
        put(Path(folder), files)
        if show:
            for path, data in files.items():
                print(f'--- {path}\n{data[:3000]!r}')
        largest, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.thread_time()
        outcome, said = 'answered', ''
        try:
            with bounded(ALL[name].seconds, of_cpu=True):
                ALL[name].read(Path(folder))
        except SimparError as error:
            outcome = 'refused'
            if show:
                print(error)
        except TooLong as stop:
            outcome, said = 'too long', str(stop)
        except BaseException as error:
            outcome, said = 'traceback', f'{type(error).__name__}: {str(error)[:120]} at {_place(error)}'
            if show:
                traceback.print_exc()
        seconds = time.thread_time() - begun
        grows = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - largest)
        outcome = 'too large' if grows > GROWS and outcome not in WRONG else outcome
    return Found(number, name, outcome, seconds, grows, said)


def _place(error: BaseException) -> str:
    """The last lines of simpar that an error came through."""
    frames = [
        one
        for one in traceback.extract_tb(error.__traceback__)
        if '/simpar/' in one.filename or '/executor/' in one.filename
    ]
    return ' < '.join(f'{Path(one.filename).name}:{one.lineno}' for one in reversed(frames[-3:]))


def page(found: list[Found], options: argparse.Namespace) -> str:
    """The page in Markdown."""
    by: dict[str, list[Found]] = defaultdict(list)
    for one in found:
        by[one.name].append(one)
    wrong = [one for one in found if one.outcome in WRONG]
    largest = max(found, key=lambda one: one.grows)
    slowest = max(found, key=lambda one: one.seconds)
    head = page_head(
        'mutations' if options.commands else 'readers',
        cases=f'{len(found):,}', first=f'{options.first:,}', seed=options.seed,
        seconds=ALL[found[0].name].seconds, stands=STANDS // 60, space=SPACE // 2**30, grows=GROWS // 2**20,
        wrong=len(wrong), readers=len(by), largest=f'{largest.grows / 2**20:.0f}',
        largest_case=f'{largest.number:,} ({largest.name})', slowest_case=f'{slowest.number:,} ({slowest.name})',
        slowest=f'{slowest.seconds:.2f}', median=f'{1000 * statistics.median(one.seconds for one in found):.1f}',
        cpus=os.cpu_count(),
    )  # fmt: skip
    rows = [_row(name, own) for name, own in sorted(by.items())]
    listed = [f'- case {one.number:,} ({one.name}): {one.outcome}: {one.said}' for one in wrong]
    return '\n'.join([head.rstrip(), *rows, _row('all', found), *(['', *listed] if listed else [])]) + '\n'


def _row(name: str, own: list[Found]) -> str:
    kinds, seconds = Counter(one.outcome for one in own), [one.seconds for one in own]
    counts = ' | '.join(f'{kinds[kind]:,}' for kind in ('answered', 'refused', *WRONG))
    times = f'{1000 * statistics.median(seconds):.1f} ms | {1000 * max(seconds):,.0f} ms'
    return f'| {name} | {len(own):,} | {counts} | {times} | {max(one.grows for one in own) / 2**20:.0f} MB |'


if __name__ == '__main__':
    sys.exit(main())
