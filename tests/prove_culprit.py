"""dev"""

import sys, time
import numpy as np
from collections import Counter, defaultdict
from sabotage_kinds import KINDS, right
from sabotage_machine import Machine, measured, noisy
from simpar.cost.price import price
from simpar.diagnosis import diagnose
from simpar.diagnosis.own import own_times, steady
from simpar.diagnosis.sites import sites_of
from simpar.lower import lower
from simpar.plan import Plan
from simpar.predict import followed
from simpar.profiles import cluster, load_profile
from simpar.workload import Transformer, Workload

PLANS = {
    'tensor 2 x data 2, 2 copies': Plan(tensor=2, data=2, copies=2),
    'pipeline 2 x tensor 2': Plan(pipeline=2, tensor=2, micro_batches=4),
    'ZeRO-3 over 4': Plan(data=4, zero=3),
}
STEPS = 12


def schedules():
    workload = Workload(model=Transformer(layers=2, hidden=2048, heads=16, vocab=8192, sequence=1024), batch=16)
    hw = cluster(load_profile('h100-sxm-8'), devices=4, links={'nvlink': 0.15})
    for name, plan in PLANS.items():
        program = lower(workload, plan, 4)
        costs = price(program, hw)
        yield name, program, costs, followed(program, costs, 3)


def main():
    global WEIGHT
    only = sys.argv[3].split(',') if len(sys.argv) > 3 else None
    draws, seed = int(sys.argv[1]), int(sys.argv[2])
    rng = np.random.default_rng(seed)
    hits = defaultdict(list)
    wrong = []
    cpu = []
    for name, program, costs, predicted in schedules():
        sites = sites_of(program)
        WEIGHT = own_times(predicted, sites).run[-1]

        def run(kind):
            while True:
                machine = Machine.of(program, costs, STEPS, predicted.step)
                strength = float(rng.uniform(0.1, 0.5))
                noisy(machine, rng)
                if kind is None:
                    return None, strength, measured(machine, program)
                truth = kind(machine, sites, rng, strength)
                # effect?
                quiet = Machine.of(program, costs, 4, predicted.step)
                return truth, strength, measured(machine, program)

        if only is None or 'clean' in only:
            for i in range(7):
                _, _, trace = run(None)
                d = diagnose(program, costs, trace)
                hits['clean'].append(not d.causes)
                if d.causes:
                    print('CLEAN', name, d.causes[0])
        for kind in KINDS:
            if only and kind.__name__ not in only:
                continue
            for _ in range(draws):
                truth, strength, trace = run(kind)
                t = time.process_time()
                d = diagnose(program, costs, trace)
                cpu.append(time.process_time() - t)
                cause = d.causes[0] if d.causes else None
                ok = right(truth, cause, sites, predicted)
                hits[kind.__name__].append(ok)
                if not ok:
                    print(
                        f'{kind.__name__:22s} {name:28s} {strength:.2f} step x{d.measured / d.predicted:.3f} | {truth.what} | ',
                        cause and (cause.kind, cause.place, round(cause.amount, 3), round(cause.explains, 2)),
                    )
    for k, v in hits.items():
        print(k, sum(v), len(v))
    allv = [x for k, v in hits.items() if k != 'clean' for x in v]
    print('rate', np.mean(allv), len(allv), 'cpu', np.mean(cpu), np.max(cpu))


if __name__ == '__main__':
    main()
