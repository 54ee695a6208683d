"""A soak: 10,000 steps of the executor on four ranks, with faults drawn at random, resumed each time.

    python -m tests.prove_soak [--steps 10000] [--faults 24] [--seed 2050] [--write docs/proofs/soak_proof.md]

One training is left alone; a twin gets a fault at a random moment, is started again with ``--resume``, gets the next,
and so on. Faults: a rank is killed, a rank is stopped, the network between ranks goes down, the disk of the
checkpoints is full. The twin's losses must be those of the undisturbed one to the bit. Behind each fault the exit code
is 5, no process of it is left and no file but whole checkpoints. The resident memory of the ranks is sampled.
The network is a namespace of its own and the disk is one in memory: root, ``unshare``, ``ip`` and ``mount``.
"""

import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.proof import ROOT, arguments, claims_table, end, page_head, table, until
from tests.tables import load_table

SCHEDULE = load_table(__file__, 'SCHEDULE')
EVERY = 100
"""Steps between two checkpoints."""
TIMEOUT = 8.0
"""Seconds without progress after which ranks give up."""
NAMED = TIMEOUT + 10
"""Seconds from a fault to the end of the run, at most."""
GONE = 5.0
"""Seconds behind the end of a run in which its last processes go."""
DISK = 4 << 20
"""Bytes of the disk in memory."""
FAULTS = ('kill', 'stop', 'network down', 'disk full')
FLAT = 0.01
"""By how much a rank's memory may grow from the first fifth to the last, as a share."""


@dataclass(frozen=True)
class Fault:
    """One fault. Arguments: ``seconds`` to the end of the run; ``said``, its first line of error."""

    kind: str
    step: int
    rank: int
    code: int
    seconds: float
    said: str
    left: tuple[str, ...]


class Training:
    """A training in a folder, its ranks in a network of their own."""

    def __init__(self, folder: Path, steps: int, seed: int) -> None:
        self.folder, self.kept = folder, folder / 'kept'
        self.kept.mkdir(parents=True)
        (folder / 'soak.yaml').write_text(SCHEDULE, encoding='utf-8')
        words = ['-m', 'executor', 'run', str(folder / 'soak.yaml'), '--steps', str(steps), '--seed', str(seed)]
        words += ['--checkpoint', str(self.kept), '--every', str(EVERY), '--resume', '--timeout', f'{TIMEOUT:g}s']
        inside = 'ip link set lo up && exec "$@"'
        self._words = ['unshare', '--net', 'sh', '-c', inside, 'sh', sys.executable, *words, '--json']
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Begin, or go on from the last checkpoint."""
        with (self.folder / 'out').open('w') as out, (self.folder / 'err').open('w') as error:
            environment = {**os.environ, 'PYTHONPATH': str(ROOT)}
            self.process = subprocess.Popen(self._words, stdout=out, stderr=error, text=True, env=environment)

    @property
    def step(self) -> int:
        """The last step that is kept."""
        whole = (path.name.removeprefix('step-') for path in self.kept.glob('step-*'))
        return max((int(name) for name in whole if name.isdigit()), default=0)

    def tree(self) -> list[int]:
        """The processes of the run, without the first."""
        assert self.process is not None
        return descendants(self.process.pid)

    def ranks(self) -> list[int]:
        """The processes that train, in order of their birth: children of the server that forks them."""
        servers = [pid for pid in self.tree() if b'forkserver' in read(f'/proc/{pid}/cmdline')]
        # Ranks have the server's command line, too; the server is the one that has children.
        return sorted(rank for server in servers for rank in children(server))

    def wait(self, seconds: float) -> int | None:
        """Its exit code; None where it has not ended."""
        assert self.process is not None
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(seconds)
        return None

    def losses(self) -> list[float]:
        """Of all steps."""
        found: list[float] = json.loads((self.folder / 'out').read_text())['losses']
        return found

    def said(self) -> str:
        """What the run said of its end."""
        lines = [one for one in (self.folder / 'err').read_text().splitlines() if one.strip()]
        errors = [one for one in lines if not one.startswith(('executor:', 'checkpoints:', 'Note:'))]
        return (errors or lines or [''])[0].replace(f'{self.folder}/', '')[:160]


def read(path: str) -> bytes:
    """A file of a process that may have gone."""
    with suppress(OSError):
        return Path(path).read_bytes()
    return b''


def words_of(pid: int) -> str:
    """The last words of a process's command line."""
    return read(f'/proc/{pid}/cmdline').decode(errors='replace').replace('\0', ' ')[-60:].strip()


def children(pid: int) -> list[int]:
    """Processes that a process has started."""
    return [int(one) for one in read(f'/proc/{pid}/task/{pid}/children').split()]


def descendants(pid: int) -> list[int]:
    """Children of a process, and theirs."""
    found = children(pid)
    return [*found, *(other for one in found for other in descendants(one))]


def resident(pid: int) -> int:
    """Bytes of memory that a process has in use."""
    fields = read(f'/proc/{pid}/statm').split()
    return int(fields[1]) * os.sysconf('SC_PAGE_SIZE') if fields else 0


def undisturbed(training: Training) -> tuple[list[float], list[tuple[int, int]]]:
    """Losses, and (step, bytes of all ranks together) each second."""
    training.start()
    samples, printed = [], 0
    while (code := training.wait(1.0)) is None:
        if training.step >= printed + 10 * EVERY:
            printed = training.step
            print(f'undisturbed: step {printed}', file=sys.stderr, flush=True)
        memory = [resident(pid) for pid in training.ranks()]
        if len(memory) == 4 and all(memory) and training.step:
            samples.append((training.step, sum(memory)))
    if code or not samples:
        raise SystemExit(f'the undisturbed training ended with {code}: {training.said()}')
    return training.losses(), samples


def disturb(training: Training, kind: str, draw: random.Random) -> Fault:
    """Let it train for a while, do it harm, and see how it ends."""
    training.start()
    begun = training.step
    while training.step <= begun and training.wait(0.05) is None:
        pass
    time.sleep(draw.uniform(0.0, 1.0))
    pids, step, tree = training.ranks(), training.step, training.tree()
    rank = draw.randrange(len(pids)) if pids else 0
    ballast = training.kept / 'ballast'
    begun_at = time.monotonic()
    if pids and kind in ('kill', 'stop'):
        os.kill(pids[rank], signal.SIGKILL if kind == 'kill' else signal.SIGSTOP)
    elif pids and kind == 'network down':
        subprocess.run(['nsenter', f'--net=/proc/{pids[0]}/ns/net', 'ip', 'link', 'set', 'lo', 'down'], check=False)
    elif pids:
        with suppress(OSError), ballast.open('wb', buffering=0) as file:
            while file.write(b'\0' * 4096):
                pass
    code = training.wait(NAMED)
    seconds = time.monotonic() - begun_at
    until(GONE, lambda: not any(map(alive, tree)))
    left = [f'process {pid}: {words_of(pid)}' for pid in tree if alive(pid)]
    if code is None:
        assert training.process is not None
        for pid in [*training.tree(), training.process.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        training.wait(10)
    ballast.unlink(missing_ok=True)
    return Fault(kind, step, rank, -1 if code is None else code, seconds, training.said(), tuple(left))


def alive(pid: int) -> bool:
    """Whether a process has not ended; one that nobody has waited for yet has."""
    state = read(f'/proc/{pid}/stat').rpartition(b')')[2].split()
    return bool(state) and state[0] != b'Z'


def main() -> int:
    """Train both, compare, and write the page."""
    options = arguments(
        __doc__,
        steps=(10_000, 'of the training'),
        faults=(24, 'how many'),
        seed=(2050, 'of the faults'),
        write=(Path, 'where the page goes'),
    )
    draw = random.Random(options.seed)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        whole, samples = undisturbed(Training(folder / 'whole', options.steps, options.seed))
        print(f'undisturbed: {options.steps} steps in {time.monotonic() - begun:.0f} s', file=sys.stderr, flush=True)
        twin = Training(folder / 'twin', options.steps, options.seed)
        subprocess.run(['mount', '-t', 'tmpfs', '-o', f'size={DISK}', 'tmpfs', str(twin.kept)], check=True)
        try:
            faults = []
            kinds = [FAULTS[index % len(FAULTS)] for index in range(options.faults)]
            draw.shuffle(kinds)
            for kind in kinds:
                faults.append(disturb(twin, kind, draw))
                print(faults[-1], file=sys.stderr, flush=True)
            twin.start()
            code = twin.wait(3600)
            losses = twin.losses() if code == 0 else []
            stray = [path.name for path in twin.kept.iterdir() if not path.name.startswith(('step-', '.lock', 'lock'))]
        finally:
            subprocess.run(['umount', '--lazy', str(twin.kept)], check=False)
    text, held = page(options, whole, losses, samples, faults, stray, time.monotonic() - begun)
    return end(text, options.write, held)


def page(options, whole, losses, samples, faults, stray, seconds) -> tuple[str, bool]:
    """The page in Markdown, and whether everything holds."""
    ended = sum(one.code == 5 for one in faults)
    longest, left = max(one.seconds for one in faults), sum(bool(one.left) for one in faults)
    fifth = options.steps / 5
    first = statistics.median(memory for step, memory in samples if fifth <= step <= 2 * fifth)
    last = statistics.median(memory for step, memory in samples if step >= 4 * fifth)
    same = sum(one == other for one, other in zip(whole, losses, strict=False))
    claims = [
        ('the disturbed losses are the undisturbed to the bit', f'{same} of {len(whole)}', losses == whole),
        ('each fault ends the run with exit 5', f'{ended} of {len(faults)}', ended == len(faults)),
        (f'within {NAMED:g} s', f'longest {longest:.1f} s', longest <= NAMED),
        ('no process is left', f'{left} left some', not left),
        ('no file but whole checkpoints is left', ', '.join(stray) or 'none', not stray),
        (
            f'memory of the ranks within {FLAT:.0%}, second fifth to last',
            f'{first / 1e6:.1f} MB to {last / 1e6:.1f} MB, {last / first - 1:+.2%}',
            last <= first * (1 + FLAT),
        ),
    ]
    facts = {'seed': options.seed, 'minutes': seconds / 60, 'steps': options.steps, 'each': EVERY}
    rows = (
        (one.kind, one.rank if one.kind in ('kill', 'stop') else '', one.step, one.code, f'{one.seconds:.1f}',
         one.said.replace('|', '/')) for one in faults
    )  # fmt: skip
    lines = [
        *claims_table(claims),
        *table('fault | rank | behind step | exit | seconds | what the run said', rows),
        '',
        'A slow disk was not drawn. The network is that between ranks on one machine.',
        '',
    ]
    return page_head('soak', faults=len(faults), **facts) + '\n'.join(lines), all(held for _, _, held in claims)


if __name__ == '__main__':
    sys.exit(main())
