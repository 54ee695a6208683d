"""A training that a user keeps: resharded on the way, and a rank killed at step 30 of 60 under torchrun.

    python -m tests.prove_training [--write]

--write puts what was seen into docs/proofs/training_proof.md.
"""

import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import torch

from executor.train import train
from simpar import from_module
from tests.proof import ROOT, arguments, line, page_head, table
from tests.tables import load_table

PAGE = ROOT / 'docs' / 'proofs' / 'training_proof.md'
TORCHRUN = Path(sys.executable).parent / 'torchrun'
SEED = 2026
MODEL = load_table(__file__, 'MODEL')
PLANS = load_table(__file__, 'PLANS')


def resharded(folder):
    """Ten steps under the first plan, twenty under the other, against thirty of the first alone."""
    first, second = (folder / f'plan{index}.yaml' for index in range(2))
    for path, plan in zip((first, second), PLANS.values(), strict=True):
        path.write_text(MODEL % plan)
    for dtype, bound in (('fp64', 1e-10), ('fp32', 1e-4)):
        kept = folder / f'kept-{dtype}'
        whole = train(first, steps=30, seed=SEED, dtype=dtype)
        train(first, steps=10, seed=SEED, dtype=dtype, checkpoint=kept)
        other = train(second, steps=30, seed=SEED, dtype=dtype, checkpoint=kept)
        losses = max(abs(a - b) / abs(a) for a, b in zip(whole.losses, other.losses, strict=True))
        apart = {name: float((whole.parameters[name] - of).norm() / whole.parameters[name].norm().clamp_min(1e-30))
                 for name, of in other.parameters.items()}  # fmt: skip
        total = float(
            sum((whole.parameters[name] - of).norm() ** 2 for name, of in other.parameters.items()) ** 0.5
            / sum(of.norm() ** 2 for of in whole.parameters.values()) ** 0.5
        )
        worst = max(apart, key=apart.__getitem__)
        what = f'{" → ".join(PLANS)}, {dtype}, 10 + 20 steps of adamw'
        found = f'losses differ by at most {losses:.1e}, all parameters together by {total:.1e}'
        alone = f'the worst parameter, `{worst}`, by {apart[worst]:.1e}'
        yield (what, f'{found}, {alone}', f'{bound:g}'), losses <= bound and apart[worst] <= bound


class Net(torch.nn.Module):
    """The user's own module."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(64, 32)
        self.inner = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 32))
        self.head = torch.nn.Linear(32, 64)

    def forward(self, tokens):
        x = self.embed(tokens)
        return self.head(x + self.inner(x))


OWN = load_table(__file__, 'OWN')


def batches():
    """The user's own data: sequences in which each token is the one before plus three."""
    draw = torch.Generator().manual_seed(SEED)
    while True:
        first = torch.randint(64, (16, 1), generator=draw)
        tokens = (first + 3 * torch.arange(9)) % 64
        yield {'tokens': tokens[:, :-1].contiguous(), 'labels': tokens[:, 1:].contiguous()}


def user(folder, steps, where):
    """What the user's script does on every rank; rank 0 writes the curve. Arguments: ``where``, device, transport."""
    torch.manual_seed(SEED)
    module = from_module(Net(), torch.randint(64, (16, 8)))
    result = train(
        folder / 'own.yaml', steps=steps, seed=SEED, module=module, data=_slowly(folder), checkpoint=folder / 'kept',
        **dict(zip(('device', 'transport'), where, strict=False)),
    )  # fmt: skip
    if result.losses:
        total = sum(float(of.double().sum()) for of in result.parameters.values())
        (folder / 'curve.json').write_text(json.dumps([list(result.losses), total]))


def _slowly(folder):
    """The data, with a note of how far they were read."""
    for number, batch in enumerate(batches()):
        (folder / f'read-{os.environ.get("RANK", "")}').write_text(f'{number}')
        yield batch


def run(folder, kill, where):
    """Under torchrun, with restarts; kill rank 1 when step 30 is kept. Returns curve, process that was killed, log."""
    folder.mkdir()
    (folder / 'own.yaml').write_text(OWN)
    words = [
        TORCHRUN,
        '--standalone',
        '--nproc-per-node',
        '2',
        '--max-restarts',
        '2',
        '-m',
        'tests.prove_training',
        '--user',
        folder,
        *where,
    ]
    log = (folder / 'log').open('w')
    job = subprocess.Popen(
        list(map(str, words)), cwd=ROOT, stdout=log, stderr=log, env={**os.environ, 'OMP_NUM_THREADS': '1'}
    )
    killed = ''
    while job.poll() is None:
        if kill and not killed and (folder / 'kept' / 'step-000030').exists():
            killed = _kill_rank(job.pid, '1')
        time.sleep(0.002)
    found = (folder / 'curve.json').read_text() if (folder / 'curve.json').exists() else ''
    if not found:
        print((folder / 'log').read_text()[-3000:], file=sys.stderr)
    return found, killed, (folder / 'log').read_text()


def _kill_rank(parent, rank):
    """Kill −9 the rank of a job of torchrun; returns its process id."""
    for path in Path('/proc').glob('[0-9]*'):
        with suppress(OSError):
            variables = (path / 'environ').read_bytes().split(b'\0')
            child = (path / 'stat').read_text().rpartition(')')[2].split()[1] == str(parent)
            if child and f'RANK={rank}'.encode() in variables:
                os.kill(int(path.name), signal.SIGKILL)
                return path.name
    return ''


def survived(folder, *where):
    """The curve with a killed rank against the undisturbed one. Arguments: ``where``, device and transport."""
    plain, _, _ = run(folder / f'plain{len(where)}', False, where)
    again, killed, log = run(folder / f'killed{len(where)}', True, where)
    restarted = 'SIGKILL' in log or 'Signal 9' in log
    curve = json.loads(plain)[0] if plain else [0.0]
    same = bool(plain) and plain == again and bool(killed) and restarted
    found = f'loss {curve[0]:.4f} → {curve[-1]:.4f} in {len(curve)} steps'
    what = (
        'kill −9 of rank 1 when step 30 of 60 was kept, torchrun restarts; own module and data, bf16, loss scale 1024'
        + (f'; {", ".join(where)}' if where else '')
    )
    yield (what, f'{found}; curve and parameters equal to the bit: {plain == again}', 'bit-equal'), same


def main():
    options = arguments(
        __doc__, write=False, user={'nargs': '+'}, device_alone=(False, 'only kill a rank on a virtual device')
    )
    if options.user:
        user(Path(options.user[0]), 60, options.user[1:])
        return 0
    well, rows = True, []
    with tempfile.TemporaryDirectory(prefix='simpar-') as folder:
        parts = () if options.device_alone else (resharded(Path(folder)), survived(Path(folder)))
        for row, good in itertools.chain(*parts, survived(Path(folder), 'virtual', 'gloo')):
            rows.append((*row, 'yes' if good else '**no**'))
            print(line(rows[-1]), flush=True)
            well = well and good
    if options.write:
        head = page_head('training', seed=SEED, torch=torch.__version__)
        PAGE.write_text(head + '\n'.join([*table('what | found | bound | good', rows), '']))
    return 0 if well else 1


if __name__ == '__main__':
    sys.exit(main())
