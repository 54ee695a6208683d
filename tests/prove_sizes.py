"""The estimates of slots and memory against what predictions really take: ``prove_sizes.py [--cases N]``.

``make prove-sizes`` runs it. Every case is predicted in a process of its own; slots and the process's peak memory are
compared with the estimate, that is made in another process and builds nothing of that size.
"""

import json
import math
import subprocess
import sys
from pathlib import Path

from proof import arguments, commit
from size_cases import cases

ROOT = Path(__file__).parent.parent
PREDICT = """
import json, resource, sys
from simpar.case import load_case
case = load_case(sys.argv[1], sys.argv[2:])
slots = sum(sum(map(len, one.program.roles)) for one in (case, case.baseline) if one)
case.predict()
print(json.dumps([slots, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]))
"""
ESTIMATE = """
import json, sys
from simpar.case import _one, cluster_of
from simpar.schedule import load_schedule
from simpar.session import Session
from simpar.size import estimate
schedule = load_schedule(sys.argv[1], sys.argv[2:])
both = [schedule, *([schedule.baseline()] if schedule.baseline() else [])]
sizes = [estimate(one, cluster_of(one).world, lambda small: _one(small, Session()).program) for one in both]
size = sizes[0] if len(sizes) == 1 else sizes[0] + sizes[1]
print(json.dumps([size.slots, size.memory]))
"""


def told(script, case):
    """What a script says of a case."""
    done = subprocess.run([sys.executable, '-c', script, *case], capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:
        sys.exit(f'{case}: {done.stderr}')
    return json.loads(done.stdout)


def main():
    """Compare all cases, and print a table."""
    options = arguments(__doc__, cases=50, seed=0)
    print(f'sizes of {options.cases} predictions, commit {commit()}, seed {options.seed}')
    worst = [0.0, 0.0]
    for case in cases(options.cases, options.seed):
        estimated, real = told(ESTIMATE, case), told(PREDICT, case)
        ratios = [one / other for one, other in zip(estimated, real, strict=True)]
        worst = [max(before, abs(math.log2(ratio))) for before, ratio in zip(worst, ratios, strict=True)]
        name = ' '.join([Path(case[0]).stem, *case[1:]])
        print(f'{real[0]:9} slots, {ratios[0]:5.2f}; {real[1] / 1e6:6.0f} MB, {ratios[1]:5.2f}: {name}', flush=True)
    print(f'estimated over real, at most: slots a factor of {2 ** worst[0]:.2f}, memory {2 ** worst[1]:.2f}')
    if max(worst) > 1:
        sys.exit('an estimate is wrong by more than a factor of 2')


if __name__ == '__main__':
    main()
