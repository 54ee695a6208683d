"""Virtual accelerators: every case of gloo, many orders, sabotage, 2,000 steps; writes docs/proofs/virtual_proof.md.

Run by ``make prove-virtual``. Each part prints as it goes.
"""

import collections
import random
import resource
import time
from pathlib import Path

import torch
from proof import ROOT, arguments, line, page_head, table
from trained_cases import ROWS
from virtual_cases import (
    differences,
    drop_event,
    program,
    reuse_early,
    small,
    swap_communicators,
    swappable,
    waits,
    world,
)

from executor import virtual
from executor.inprocess import InProcess
from executor.ranks.pool import Pool
from executor.virtual.engine import Race
from simpar.errors import Deadlock, SimparError

PAGE = ROOT / 'docs' / 'proofs' / 'virtual_proof.md'
GLOO = 1e-12
FLAT = 0.01


def figures(pool, seed):
    """Every case: to the bit as in process, and as threads on gloo."""
    yield from table('case | equal in process | largest difference from gloo, fp64 | events waited for', ())
    for number, name in enumerate(ROWS):
        made = program(name)
        ranks = world(made, order=seed + number, steps=3)
        count = sum(len(waits(rank)) for rank in ranks.ranks)
        found = ranks.run()
        unequal = differences(found, InProcess(made).run(3))
        assert not unequal, (name, unequal)
        threads = pool.run(made, steps=3, dtype='fp64', keep=True)
        worst = max(
            float((ours[tensor] - wanted).norm() / wanted.norm().clamp(min=1e-30))
            for ours, theirs in ((found.gradients, threads.gradients), (found.parameters, threads.parameters))
            for tensor, wanted in theirs.items()
        )
        assert worst <= GLOO or worst_is_noise(found, threads), (name, worst)
        yield line([name, 'to the bit', f'{worst:.1e}', count])


def worst_is_noise(found, threads):
    """Whether what differs more is nothing but rounding beside the largest gradient, as a key's bias is."""
    largest = max(float(tensor.norm()) for tensor in threads.gradients.values())
    pairs = ((found.gradients, threads.gradients), (found.parameters, threads.parameters))
    return all(
        float((ours[tensor] - wanted).norm()) <= GLOO * max(largest * 1e-3, float(wanted.norm()))
        for ours, theirs in pairs
        for tensor, wanted in theirs.items()
    )


def orders(count, seed):
    """Many orders of a few programs, each to the bit as in process."""
    cases = [small(), *map(program, ('network, data 2, tensor 2, late', 'network, mean squared error, Adam'))]
    wanted = [InProcess(made).run(2) for made in cases]
    for number in range(count):
        which = number % len(cases)
        unequal = differences(world(cases[which], order=seed + number).run(), wanted[which])
        assert not unequal, (number, unequal)
    yield f'{count} adversarial orders of {len(cases)} programs: all to the bit as in process, no race.'


def sabotage(count, seed):
    """Drawn sabotage on drawn programs: noticed every time."""
    draw, told = random.Random(seed), collections.Counter()
    names = [
        'network, data 2, tensor 2, late',
        'network, mean squared error, tensor 4, late',
        'tensor 4, copies 2',
        'data 2, tensor 2, sequence parallel',
        'context 2, heads exchanged, data 2, zero',
        'tied over two stages, momentum, clipped, loss scale',
    ]
    for number in range(count):
        made = program(draw.choice(names))
        ranks = world(made, order=seed + number, steps=2)
        rank = draw.choice(ranks.ranks)
        kind = ('an event dropped', 'memory reused early', 'two communicators swapped')[number % 3]
        if kind == 'an event dropped':
            drop_event(rank, draw.choice(waits(rank)))
        elif kind == 'memory reused early':
            reuse_early(rank)
        else:
            pairs = list(swappable(rank))
            while not pairs:
                ranks = world(program(draw.choice(names)), order=seed + number, steps=2)
                rank = draw.choice(ranks.ranks)
                pairs = list(swappable(rank))
            swap_communicators(rank, draw.choice(pairs))
        try:
            ranks.run()
        except (Race, Deadlock) as error:
            told[kind, type(error).__name__] += 1
        except SimparError as error:
            raise AssertionError((kind, str(error))) from error
        else:
            raise AssertionError(f'{kind} was not noticed, draw {number}')
    rows = ((kind, noticed, noticed, how) for (kind, how), noticed in sorted(told.items()))
    yield from table('sabotage | drawn | noticed | as', rows)


def steps(count):
    """Many steps: memory of host and devices from step 200 on."""
    ranks = world(small(), steps=count)
    sizes = {}

    def look(step):
        pages = int(Path('/proc/self/statm').read_text().split()[1])
        sizes[step] = (pages * resource.getpagesize(), virtual.memory_reserved(0), virtual.memory_allocated(0))

    # The last host to issue a step.
    last = ranks.ranks[-1]
    issue = last.issue

    def watched(step):
        issue(step)
        # Not the last step, in which gradients are kept for the answer.
        if step % 100 == 0:
            look(step)

    last.issue = watched
    ranks.run()
    later = [size for step, size in sizes.items() if step >= min(200, count // 2)]
    spans = [max(values) / min(values) - 1 for values in zip(*later, strict=True)]
    assert max(spans) <= FLAT, (spans, sizes)
    names = 'memory of the process', 'device: reserved', 'device: in use'
    found = zip(names, (f'{first:,} bytes' for first in later[0]), (f'{span:.2%}' for span in spans), strict=True)
    yield from table(f'of {count:,} steps, from step {min(200, count // 2)} on | first | largest change', found)


def main():
    """Prove, and write the page."""
    chosen = arguments(__doc__, orders=240, sabotage=90, steps=2000, seed=0, write=False)
    lines, begun = [], time.process_time()

    def say(title, found):
        for text in (f'## {title}', '', *found, ''):
            print(text, flush=True)
            lines.append(text)

    # First, while the process is small.
    say('Memory is flat', steps(chosen.steps))
    say('Orders', orders(chosen.orders, chosen.seed))
    say('Sabotage', sabotage(chosen.sabotage, chosen.seed))
    with Pool(4, timeout=120) as pool:
        say('Figures', figures(pool, chosen.seed))
    if chosen.write:
        head = page_head('virtual', seed=chosen.seed, seconds=time.process_time() - begun)
        PAGE.write_text(head + '\n'.join(lines).rstrip() + '\n', encoding='utf-8')


if __name__ == '__main__':
    torch.set_num_threads(1)
    main()
