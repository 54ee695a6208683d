"""What neighbours in a sweep share is not worked out again, and no row can tell."""

import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from every import EVERY
from fresh_rows import told
from tables import load_table, load_tree

from simpar import Plan, Transformer, Workload, load_sweep
from simpar.lower import lower
from simpar.session import Session

FILE = load_table(__file__, 'FILE')
KEYS = load_tree(__file__, 'KEYS')
DEVICE = load_table(__file__, 'DEVICE')


OFTEN = ['plan.recompute', 'plan.fusion', 'plan.tiles', 'plan.prefetch', 'plan.overlap', 'plan.zero']
"""Keys of which several are swept at once, for kept passes look at some of them alone."""


PRICES = ['cluster.links.nvlink', 'cluster.links.infiniband', 'cluster.slow', 'cluster.profile']
"""Keys that leave the program as it is, so that rows share all but prices."""


def drawn(draw, families, rows, often=OFTEN, others=KEYS):
    """Rows of random keys: families of them that differ in one key or two, of those ``often`` changed one at least."""
    for _ in range(families):
        common = {key: draw.choice(KEYS[key]) for key in draw.sample(sorted(KEYS), 3)}
        for _ in range(rows):
            changed = [draw.choice(often), draw.choice([*often, *others])]
            yield {**common, **{key: draw.choice(KEYS[key]) for key in changed}}


def write_devices(folder):
    """Profiles of a few devices behind the very same links."""
    for number in range(3):
        text = DEVICE.replace('N', str(number)).replace('M', str(2 + number))
        (folder / f'device{number}.yaml').write_text(text, encoding='utf-8')


@pytest.mark.skipif(not hasattr(os, 'fork'), reason='processes that have predicted nothing are forks')
def test_random_rows_in_random_order_are_those_of_fresh_processes_to_the_bit(tmp_path, monkeypatch):
    draw = random.Random(11)
    path = tmp_path / 'schedule.yaml'
    families, priced, each = (5, 4, 5) if EVERY == 1 else (2, 1, 4)
    rows = json.dumps([*drawn(draw, families, each), *drawn(draw, priced, 3, PRICES, PRICES)])
    path.write_text(FILE.replace('LAYERS', '2').replace('SWEEP', rows), encoding='utf-8')
    write_devices(tmp_path)
    here = Path(__file__).parent
    fresh = subprocess.run(
        [sys.executable, str(here / 'fresh_rows.py'), str(path)],
        env={**os.environ, 'PYTHONPATH': f'{here.parent}{os.pathsep}{here}'},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    schedules = [row.schedule for row in load_sweep(path).rows if not row.problems]
    assert len(fresh) == len(schedules) > 3 * families + priced
    assert sum('"figures": null' not in line for line in fresh) > len(fresh) / 2, 'nearly all cannot be'
    session = Session()
    # First as they stand, where neighbours share most.
    for place in [*range(len(fresh)), *draw.choices(range(len(fresh)), k=len(fresh) // 2)]:
        assert told(schedules[place], session) == fresh[place]


def test_passes_are_done_once_for_plans_that_differ_elsewhere(tmp_path, monkeypatch):
    # By its name: the package has a function that is called like it.
    done, lowering = {'shard': 0, 'stages_of': 0}, sys.modules['simpar.lower.lower']

    def counted(name, real):
        def call(*arguments, **options):
            done[name] += 1
            return real(*arguments, **options)

        return call

    for name, module in {'shard': lowering, 'stages_of': lowering.roles}.items():
        monkeypatch.setattr(module, name, counted(name, getattr(module, name)))
    path = tmp_path / 'schedule.yaml'
    # Rows of 1,000 features do not divide by 16 ranks: there fusion decides how parameters are sharded.
    text = FILE.replace('LAYERS', '12').replace('ffn: 1000', 'ffn: 1024').replace('vocab: 1024', 'vocab: 2048')
    sweep = '{plan.zero: [1, 2], plan.recompute: [none, full], plan.fusion: [layer, all, none], plan.prefetch: [0]}'
    path.write_text(text.replace('SWEEP', sweep), encoding='utf-8')
    answer = load_sweep(path).predict()
    assert len({result.step for result in answer.results}) > 4
    assert done == {'shard': 2, 'stages_of': 4}


# A session: results are found again for what they were made of, and no result depends on it


WORKLOAD = Workload(model=Transformer(layers=2, hidden=32, heads=4, vocab=64, sequence=8), batch=32)


def test_a_pass_is_done_again_where_a_key_that_it_read_differs_and_not_elsewhere():
    done, session = [], Session()

    def degrees(plan, world):
        done.append(plan.tensor)
        # The second key is read of some plans alone.
        return plan.tensor, plan.copies if plan.tensor > 1 else world

    plans = [Plan(), Plan(copies=2), Plan(tensor=2), Plan(tensor=2, copies=2), Plan(zero=1)]
    found = [session.of_plan(degrees, plan, world=4) for plan in plans]
    assert found == [(1, 4), (1, 4), (2, 1), (2, 2), (1, 4)]
    assert done == [1, 2, 2]
    assert session.of_plan(degrees, Plan(), world=8) == (1, 8)
    assert len(done) == 4


def test_what_an_inner_pass_reads_its_caller_has_read():
    done, session = [], Session()

    def inner(plan):
        return plan.zero

    def outer(plan):
        done.append(plan)
        return session.of_plan(inner, plan)

    assert [session.of_plan(outer, Plan(zero=zero)) for zero in (0, 1, 0, 3, 1)] == [0, 1, 0, 3, 1]
    assert len(done) == 3


def test_what_was_asked_for_longest_ago_goes_first():
    made, session = [], Session(most=2)

    def make(name):
        made.append(name)
        return len(made)

    assert [session.once(make, name=name) for name in 'abab'] == [1, 2, 1, 2]
    assert [session.once(make, name=name) for name in 'acab'] == [1, 3, 1, 4]


def test_what_cannot_be_made_is_not_kept():
    session, numbers = Session(), iter([0, 1])

    def inverse():
        return 1 / next(numbers)

    with pytest.raises(ZeroDivisionError):
        session.once(inverse)
    assert session.once(inverse) == 1


@pytest.mark.parametrize('common', [{}, {'zero': 2, 'shard_form': 'flat'}, {'pipeline': 2, 'micro_batches': 4}])
def test_programs_of_a_session_are_those_of_none_whatever_key_differs(common):
    """Each key after the others, so that a result that was kept for another plan would be found."""
    changes = {
        'copies': 2, 'sequence_parallel': True, 'zero': 3, 'prefetch': 1, 'recompute': 'full', 'tiles': 2,
        'fusion': 'all', 'shard_threshold': 512.0, 'unsharded': ('*.bias',), 'reduce': 'late', 'sum_loss': True,
        'receive': 'late', 'streams': 'single', 'reduce_gradients': 'end', 'overlap': ('recompute_comm_overlap',),
        'accumulate': 'full', 'shard_form': 'padded', 'shard_group': 2, 'recompute_communication': False,
        'copies_loss': 'sum', 'gather': '', 'order': 'gpipe',
    }  # fmt: skip
    base = Plan(data=4, tensor=2, **common)
    world, session = 8 * base.pipeline, Session()
    for key, value in changes.items():
        plan = replace(base, **{key: value})
        assert lower(WORKLOAD, plan, world, session=session).hash == lower(WORKLOAD, plan, world).hash, key
    assert lower(WORKLOAD, base, world, session=session).hash == lower(WORKLOAD, base, world).hash
