"""The long proof of paced links: ``prove_paced.py [--seed N] [--sets N]``; ``make prove-paced`` runs it.

Random sets of transfers share a link whose clock begins between 1 s and 1e8 s of uptime. The production code runs them
on a clock that jumps; each has to end at the moment, to the bit, at which the engine ends it.
"""

import sys
import time

from paced_links import BASES, prove
from proof import arguments, commit


def main():
    """Compare all sets, and print what was found."""
    options = arguments(__doc__, seed=(0, 'of the first set'), sets=100000)
    begin = time.process_time()
    proof = prove(options.seed, options.sets)
    print(f'paced links, commit {commit()}, seeds from {options.seed}')
    print(f'{proof.sets} sets of {proof.transfers} transfers, clocks from {BASES[0]:g} s to {BASES[1]:g} s: all ended')
    print(f"{proof.sets - len(proof.wrong)} of them at the engine's times, to the bit")
    print(f'{proof.late} of them once more, with threads that wake up late: all ended')
    print(f'{time.process_time() - begin:.0f} s of CPU time')
    if proof.wrong:
        sys.exit(f"not at the engine's times: seeds {', '.join(map(str, proof.wrong[:20]))}")


if __name__ == '__main__':
    main()
