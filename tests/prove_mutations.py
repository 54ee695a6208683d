"""`make prove-mutations`: mutated inputs of every kind, read by simpar in this process under bounds.

    python tests/prove_mutations.py --cases 10000 --seed 2026 --write docs/proofs/mutations_proof.md
    python tests/prove_mutations.py --seed 2026 --only 4711      one case again, with its traceback

Nothing may end in a traceback or an internal error, run for longer than a bound of CPU seconds, or take more than a
bound of memory. `--limit` bounds what simpar itself may estimate, so that what is large and allowed takes little time.
"""

import argparse
import collections
import contextlib
import io
import json
import multiprocessing
import os
import resource
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, Final

from mutations import Case, case, makers, prepare
from proof import TooLong, arguments, bounded, commit

SECONDS: Final = 60.0
"""CPU seconds that one case may take."""
MEMORY: Final = 6 * 2**30
"""Bytes of address space of the process."""
LIMITS: Final = ('--limit', '1GB', '--limit', '5s')
GOOD: Final = frozenset({0, 2, 3, 4})


def main() -> int:
    """Run the cases in some processes, write the page."""
    options = arguments(
        __doc__,
        seed=2026,
        cases=10000,
        begin=(0, 'number of the first case'),
        jobs=(2, 'processes at once'),
        kinds=('', 'only these kinds of input, by the names of their makers, with commas'),
        only=(int, 'run this case alone, and show it'),
        write=Path,
    )
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        if options.only is not None:
            print(json.dumps(_one(options.seed, options.only, Path(folder), options.kinds, show=True), indent=1))
            return 0
        begun = time.monotonic()
        counted: collections.Counter[tuple[str, str]] = collections.Counter()
        wrong = []
        with multiprocessing.Pool(options.jobs, initializer=_bounded, maxtasksperchild=200) as pool:
            numbers = range(options.begin, options.begin + options.cases)
            work = [(options.seed, number, folder, options.kinds) for number in numbers]
            for found in pool.imap_unordered(_task, work, chunksize=1):
                counted[found['kind'], found['outcome']] += 1
                if found['outcome'] in ('internal error', 'too long', 'traceback', 'bad exit'):
                    wrong.append(found)
                    print(json.dumps(found), file=sys.stderr, flush=True)
        text = page(counted, wrong, options, time.monotonic() - begun)
    if options.write:
        options.write.write_text(text, encoding='utf-8')
    print(text)
    return 1 if wrong else 0


def _bounded() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def _task(work: tuple[int, int, str, str]) -> dict[str, Any]:
    seed, number, folder, kinds = work
    return _one(seed, number, Path(folder), kinds, show=False)


def _one(seed: int, number: int, sources: Path, kinds: str = '', *, show: bool) -> dict[str, Any]:
    """Run one case; what became of it."""
    made = case(
        seed, number, makers(sources) if not kinds else {k: v for k, v in makers(sources).items() if k in kinds}
    )
    with tempfile.TemporaryDirectory() as folder:
        for name, text in made.files.items():
            data = text if isinstance(text, bytes) else text.encode('utf-8', errors='surrogatepass')
            (Path(folder) / name).write_bytes(data)
        words = [word.replace('@', f'{folder}/', 1) if '@' in word else word for word in made.command]
        found = _judged(made, words, show=show)
        if show:
            for name, text in made.files.items():
                print(f'--- {name}\n{text[:3000]!s}')
    return {'number': number, 'kind': made.kind, 'command': ' '.join(made.command), **found}


def _judged(made: Case, words: list[str], *, show: bool) -> dict[str, Any]:
    out, said = io.StringIO(), io.StringIO()
    if show:
        os.environ['SIMPAR_DEBUG'] = '1'
    try:
        with bounded(SECONDS, of_cpu=True), contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
            code = _command(words)
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 2
    except TooLong as stop:
        return {'outcome': 'too long', 'said': f'took more than the bound of CPU time at {stop}'}
    except BaseException as error:
        if show:
            traceback.print_exc()
        return {'outcome': 'traceback', 'said': f'{type(error).__name__}: {str(error)[:200]}'}
    text = said.getvalue()
    if 'internal error' in text:
        return {'outcome': 'internal error', 'said': text[-400:]}
    if 'Traceback' in text:
        return {'outcome': 'traceback', 'said': text[-400:]}
    if code not in GOOD:
        return {'outcome': 'bad exit', 'said': f'{code}: {text[-300:]}'}
    return {'outcome': 'answered' if code == 0 else 'refused', 'said': ''}


def _command(words: list[str]) -> int:
    """A verb, or one of the readers that have none."""
    from executor.checkpoint import contents_of
    from simpar.calibrate import calibrate, load_record, write_profile
    from simpar.cli import main as simpar
    from simpar.errors import SimparError
    from simpar.profiles import load_profile
    from simpar.program.text import parse_program

    verb, *rest = words
    if verb not in ('calibration', 'program', 'checkpoint'):
        limited = verb in ('run', 'check', 'resolve') or (verb == 'validate' and '--memory' not in rest)
        return simpar([*words, *(LIMITS if limited else ())])
    path = Path(rest[0])
    try:
        if verb == 'calibration':
            write_profile(path.with_name('mine.yaml'), calibrate(load_record(path)))
            load_profile(path.with_name('mine.yaml'))
        elif verb == 'checkpoint':
            contents_of(path.parent)
        else:
            parse_program(path.read_text(encoding='utf-8', errors='replace'), path.name)
    except SimparError as error:
        return error.exit_code
    return 0


def page(
    counted: collections.Counter[tuple[str, str]], wrong: list[dict[str, Any]], options: argparse.Namespace, took: float
) -> str:
    """The page in Markdown."""
    kinds = sorted({kind for kind, _ in counted})
    outcomes = ('answered', 'refused', 'internal error', 'traceback', 'too long', 'bad exit')
    total = sum(counted.values())
    return (
        '\n'.join(
            [
                '# Mutated inputs',
                '',
                f'`make prove-mutations`: {total:,} cases, seed {options.seed}, commit {commit()},',
                f'in {took / 60:.0f} minutes. Each is a good file with one or several changes, read in one process,',
                f'under {SECONDS:.0f} s of CPU time and {MEMORY // 2**30} GiB. `--only N` runs case N again.',
                '',
                'Changes: letters, lines, words, values and numbers are replaced, lost, doubled or moved; files are',
                'cut; any documented key is set to any value. *Answered* means exit 0; *refused*, one screen that says',
                'what is wrong.',
                '',
                f'| input | {" | ".join(outcomes)} |',
                f'|---|{"---|" * len(outcomes)}',
                *(f'| {kind} | {" | ".join(str(counted[kind, one]) for one in outcomes)} |' for kind in kinds),
                f'| all | {" | ".join(str(sum(counted[kind, one] for kind in kinds)) for one in outcomes)} |',
                '',
                *(f'- case {one["number"]} ({one["kind"]}): {one["outcome"]}: {one["said"]}' for one in wrong),
            ]
        ).rstrip('\n')
        + '\n'
    )


if __name__ == '__main__':
    sys.exit(main())
