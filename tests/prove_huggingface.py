"""Models of others on ranks: ``make prove-huggingface``; ``--write`` keeps docs/proofs/huggingface_proof.md.

Tiny models of transformers, each under plans that cover every pair of axes: losses and all gradients in process in
fp64, and of 8 ranks over gloo in fp32. Mixtral also with an auxiliary loss. Ends with an error where one is off by more
than the bound.
"""

import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from huggingface_cases import MIXTURES, TINY
from huggingface_oracle import PLANS, SIX, Oracle, groups, plan_for, ranks
from proof import arguments, line, page_head, table

from executor.inprocess import InProcess
from executor.ranks.pool import Pool
from simpar.lower import lower

PAGE = HERE.parent / 'docs' / 'proofs' / 'huggingface_proof.md'
WIDE, NARROW = 1e-10, 1e-5
NARROW_FLOOR = 1e-3
"""Of the largest gradient: in fp32 smaller ones are held to this."""
MARGIN = 1e-3
"""Between scores on which it depends where a token goes: thousands of times what fp32 rounds."""
AUX_LOSS = 0.4
WORLD = 8


def margin_kept(kind, folder):
    """The oracle of the first seed by which no token stands between two experts."""
    config = MIXTURES.get(kind, TINY.get(kind))
    for seed in range(200):
        one = Oracle(kind, config, folder, seed)
        if one.workload.model.experts is None or one.margin() >= MARGIN:
            return one
    raise SystemExit(f'{kind}: no seed keeps the margin')


def errors(oracle, name, pool, aux_loss):
    """Largest errors in process and on gloo, and of the loss without the patch."""
    workload = oracle.with_aux_loss(aux_loss) if aux_loss else oracle.workload
    plan = plan_for(PLANS[name], workload)
    program = lower(workload, plan, ranks(plan))
    together = groups(plan) if aux_loss else 1
    alone = InProcess(program, oracle.seed).run(1)
    shared = pool.run(program, steps=1, seed=oracle.seed, dtype='fp32', keep=True)
    exact = oracle.deviation(alone.losses[0], alone.gradients, aux_loss, together)
    near = oracle.deviation(shared.losses[0], shared.gradients, aux_loss, together, NARROW_FLOOR)
    unpatched = oracle.unpatched_loss()
    return exact, near, None if aux_loss else abs(shared.losses[0] / unpatched - 1)


def tables(kind, pools, folder):
    """Lines of a model, and what is beyond the bounds."""
    oracle, wrong = margin_kept(kind, folder), []
    margin = f', margin {oracle.margin():.1e}' if oracle.workload.model.experts else ''
    yield f'## {kind}\n\nSeed {oracle.seed}{margin}.\n'
    yield from table('plan | ranks | in process | gloo | unpatched', ())
    for aux_loss in (0.0, AUX_LOSS) if kind == 'mixtral' else (0.0,):
        for name in PLANS:
            world = ranks(plan_for(PLANS[name], oracle.workload))
            if world not in pools:
                pools[world] = Pool(world, timeout=120)
            found = errors(oracle, name, pools[world], aux_loss)
            wrong += [one for one, bound in zip(found, (WIDE, NARROW, NARROW), strict=True) if one and not one <= bound]
            shown = ('' if one is None else f'{one:.1e}' for one in found)
            yield line([f'{name}{", aux" if aux_loss else ""}', world, *shown])
    if wrong:
        raise SystemExit(f'{kind}: off by {max(wrong):.2g}')


def main():
    import transformers

    options = arguments(__doc__, write=(False, 'keep the page'), only={'choices': SIX, 'help': 'one model'})
    pools, lines, began = {}, [], time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for kind in [options.only] if options.only else SIX:
            for text in tables(kind, pools, Path(folder)):
                print(text, flush=True)
                lines.append(text)
            lines.append('')
    for pool in pools.values():
        pool.close()
    print(f'{time.monotonic() - began:.0f} s')
    if options.write:
        facts = {'plans': len(PLANS), 'world': WORLD, 'aux': AUX_LOSS, 'margin': MARGIN}
        story = page_head('huggingface', version=transformers.__version__, **facts)
        PAGE.write_text(story + '\n'.join(lines).rstrip('\n') + '\n', encoding='utf-8')


if __name__ == '__main__':
    main()
