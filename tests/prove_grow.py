"""The long proof of growing: ``prove_grow.py [--seed N] [--plans N]``; ``make prove-grow`` runs it.

Random plans of transformers are lowered in full and by growing few layers, and the hashes of both programs are
compared. Prints what came of the plans; ends with an error where two programs differ.
"""

import argparse
import sys
import time
from collections import Counter

from grow_cases import compared

parser = argparse.ArgumentParser()
parser.add_argument('--seed', type=int, default=0)
parser.add_argument('--plans', type=int, default=2000)
asked = parser.parse_args()
found = Counter()
for seed in range(asked.seed, asked.seed + asked.plans):
    how = compared(seed)
    found[how] += 1
    if how == 'unequal':
        print(f'seed {seed}: the programs differ')
print(
    f'{asked.plans} plans from seed {asked.seed}: ' + ', '.join(f'{count} {how}' for how, count in found.most_common())
)
print(f'{time.process_time():.0f} s CPU')
sys.exit(bool(found['unequal']))
