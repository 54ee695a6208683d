"""The tests of numerics on virtual accelerators, file by file; writes docs/proofs/on_virtual_proof.md.

    python tests/prove_on_virtual.py [--only PART,PART] [--again] [--write]

What a file gave is kept in out/on_virtual, so that a run that ends early goes on; files that failed are run again.
--again begins anew.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from proof import arguments, commit, page_head

ROOT = Path(__file__).parent.parent
PAGE = ROOT / 'docs' / 'proofs' / 'on_virtual_proof.md'
KEPT = ROOT / 'out' / 'on_virtual'
FILES = (
    'numerics_attention', 'numerics_pipeline', 'graph_numerics', 'recompute_numerics',
    'update_numerics', 'optimizer_parallel_numerics', 'shard_forms_numerics',
    'strategy_combined', 'tiles_numerics', 'mixture', 'latent', 'layer_kinds', 'packed_documents', 'loss_operators',
    'training_fuzz',
)  # fmt: skip
"""The files of tests that train in process and compare with autograd."""
LIMIT = 1200
"""Seconds that one file may take."""


def run(part):
    """All tests of a file, on virtual accelerators; what came of it."""
    figures = KEPT / f'{part}.figures'
    words = ['-m', 'pytest', '-q', '-p', 'no:cacheprovider', '-p', 'on_virtual', '-o', 'addopts=']
    paths = os.pathsep.join(map(str, (ROOT, ROOT / 'tests')))
    environment = {**os.environ, 'PYTHONPATH': paths, 'SIMPAR_FIGURES': str(figures)}
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, *words, f'tests/test_{part}.py'],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    if done.returncode not in (0, 1):
        raise SystemExit(f'{part}: pytest ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-1000:]}')
    found = json.loads(figures.read_text())
    figures.unlink()
    if found['failed']:
        print(done.stdout[-6000:], file=sys.stderr)
    return {**found, 'commit': commit(), 'seconds': round(time.monotonic() - begun)}


def row(part, found):
    cells = [f'`test_{part}.py`', found['commit'], *(found[key] for key in ('passed', 'failed', 'skipped', 'count'))]
    cells.append(f'{found["virtual"]:.1e}' if found['count'] else '')
    return f'| {" | ".join(map(str, cells))} |'


def main():
    options = arguments(__doc__, only=','.join(FILES), again=False, write=False)
    KEPT.mkdir(parents=True, exist_ok=True)
    results = {}
    for part in options.only.split(','):
        path = KEPT / f'{part}.json'
        # What failed is run again: it may have been mended.
        if options.again or not path.exists() or json.loads(path.read_text())['failed']:
            path.write_text(json.dumps(run(part)))
        results[part] = json.loads(path.read_text())
        print(row(part, results[part]), f'{results[part]["seconds"]} s', flush=True)
    if options.write:
        told = {part: json.loads((KEPT / f'{part}.json').read_text()) for part in FILES
                if (KEPT / f'{part}.json').exists()}  # fmt: skip
        PAGE.write_text(page_head('on_virtual') + '\n'.join([*(row(*one) for one in told.items()), '', end(told), '']))
    return 1 if any(found['failed'] for found in results.values()) else 0


def end(told):
    """The sums, and what was not run."""
    total = {key: sum(found[key] for found in told.values()) for key in ('passed', 'failed', 'skipped')}
    missing = [f'`test_{part}.py`' for part in FILES if part not in told]
    lines = [f'{total["passed"]} tests passed, {total["failed"]} failed, {total["skipped"]} were skipped.']
    reasons = sorted({reason for found in told.values() for reason in found['reasons']})
    lines += [f'Skipped: {"; ".join(reasons)}.'] if reasons else []
    lines += [f'Not run: {", ".join(missing)}.'] if missing else ['All files were run.']
    return '\n'.join(lines)


if __name__ == '__main__':
    sys.exit(main())
