"""The long proof of shards of odd sizes: ``prove_zero.py [--seed N] [--plans N]``; ``make prove-zero`` runs it.

Every module and stage against torch's FSDP2 and FSDP1 on 2 to 5 ranks, hundreds of random plans against autograd, and
some of them on gloo. Prints what was compared and how far it was off; ends with an error where anything differs.
"""

import tempfile
from pathlib import Path

import torch
from odd_cases import coverage, odd_case
from proof import arguments, commit
from rank_jobs import found_by
from test_shard_forms_oracle import FORMS, MODULES, STEPS, jobs, messages, program_of, same_as_torch

from executor.inprocess import InProcess
from executor.numerics import check
from executor.ranks.pool import Pool
from executor.validate import validate

RANKS = (2, 3, 4, 5)
ON_GLOO, GLOO_RANKS = 12, 4


def against_torch(ranks):
    """Jobs and collectives compared on so many ranks, and the largest deviation of a trained weight."""
    with tempfile.TemporaryDirectory() as folder:
        found = found_by('sharded_ranks', jobs(MODULES, batch=12 * ranks // 2), ranks, Path(folder))
    collectives, worst = 0, 0.0
    for job in found[0]:
        module, form, stage = job
        program = program_of(module, form, stage, ranks, batch=12 * ranks // 2)
        off = same_as_torch(program, [rank[job] for rank in found], list(MODULES).index(module))
        collectives += len(messages(program))
        worst = max(worst, off)
    return len(found[0]), collectives, worst


def against_autograd(seeds):
    """The plans of some seeds, and the largest deviation of a loss, gradient or parameter."""
    found, worst = [], 0.0
    for seed in seeds:
        (workload, plan, _, _), program = case = odd_case(seed)
        validate(program)
        worst = max(worst, check(program, workload, plan, steps=2, seed=seed).worst.error)
        found.append(case)
    return found, worst


def on_gloo(found, seeds):
    """How many plans ran on real ranks, and how far they were from the same in one process."""
    count, worst = 0, 0.0
    with Pool(GLOO_RANKS, timeout=60) as pool:
        for seed, (case, program) in zip(seeds, found, strict=True):
            if case.world <= GLOO_RANKS and count < ON_GLOO:
                run = pool.run(program, steps=STEPS, seed=seed, dtype='fp64', keep=True)
                wanted = InProcess(program, seed).run(STEPS)
                for name, value in wanted.parameters.items():
                    off = float((run.parameters[name] - value).norm() / (value.norm() + 1e-3))
                    assert off <= 1e-10, (seed, name, off)
                    worst = max(worst, off)
                count += 1
    return count, worst


def main():
    options = arguments(__doc__, seed=(0, 'the first seed of the random plans'), plans=(400, 'how many random plans'))
    print(f'commit {commit()}, seed {options.seed}, torch {torch.__version__}', flush=True)
    for ranks in RANKS:
        count, collectives, worst = against_torch(ranks)
        print(
            f'{ranks} ranks: {count} jobs of {len(MODULES)} modules, FSDP2 {len(FORMS["padded"])} and FSDP1 '
            f'{len(FORMS["flat"])} each: {collectives} collectives a step, shards and gathered weights equal to the '
            f'byte; weights off by at most {worst:.1e}',
            flush=True,
        )
    seeds = range(options.seed, options.seed + options.plans)
    found, worst = against_autograd(seeds)
    print(f'{len(found)} random plans train as autograd and torch.optim do, off by at most {worst:.1e}', flush=True)
    counts = coverage(found)
    print('of them ' + ', '.join(f'{counts[feature]} {feature}' for feature in sorted(counts)), flush=True)
    count, worst = on_gloo(found, seeds)
    print(f'{count} of them on gloo, off by at most {worst:.1e} from the same in one process')


if __name__ == '__main__':
    main()
