"""The long proof of experts: ``prove_mixtures.py [--seed N] [--plans N]``; ``make prove-mixtures`` runs it.

Random plans with mixtures of experts are validated, trained in process, and compared with torch's autograd of the
unsharded model: every loss, gradient and parameter of two steps. Ends with an error at the first that differs.
"""

import time

from mixture_cases import mixture_case
from proof import arguments

from executor.numerics import check
from executor.validate import validate
from simpar.lower import lower

asked = arguments(__doc__, seed=0, plans=500)
shared, pairs, worst = 0, 0, 0.0
for seed in range(asked.seed, asked.seed + asked.plans):
    workload, plan, world = mixture_case(seed)
    program = lower(workload, plan, world)
    validate(program)
    worst = max(worst, check(program, workload, plan, steps=2, seed=seed).worst.error)
    shared += plan.expert > 1
    pairs += plan.pairs != 'none'
told = f'{asked.plans} plans from seed {asked.seed}, {shared} with expert ranks, {pairs} with pairs'
print(f'{told}: none is off by more than {worst:.1e}')
print(f'{time.process_time():.0f} s CPU')
