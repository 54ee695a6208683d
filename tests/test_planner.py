"""The planner: least seconds and bytes are below the engine's, and the best plan is that of brute force."""

import itertools
import math
import random
import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from every import EVERY, some

from simpar import cluster, load_profile, price
from simpar.case import case_of, cluster_of
from simpar.errors import ScheduleError
from simpar.pipeline.messages import KINDS
from simpar.pipeline.orders import named_order
from simpar.planner import load_planning
from simpar.planner.bound import Sums
from simpar.planner.clock import moments_of, timed
from simpar.planner.judge import GUESS, Judge, Workers
from simpar.planner.pieces import Speeds, Work, first_behind, last_ahead, windows
from simpar.planner.render import render
from simpar.planner.sample import load_of, outermost
from simpar.planner.search import Search, Starts
from simpar.planner.space import KEYS
from simpar.plans import NEAREST_FIRST
from simpar.shipped import example_folder
from simpar.sweep.answer import predicted
from tests import planner_cases as spaces
from tests.planner_cases import FILE, MODELS, asked, judged, small_space
from tests.tables import load_table

TWO = {'profile': 'h100-sxm-8', 'nodes': 2, 'stack': 'megatron-te'}
EIGHT = spaces.MODELS[3] | {'layers': 8}


@pytest.fixture(scope='module')
def whole():
    """A search that nothing interrupts."""
    return spaces.planned().answer


@pytest.fixture
def file(put):
    return put('plan.yaml', FILE)


@pytest.mark.parametrize(('seed', 'further'), [(18, ()), (44, ('offload', 'recompute_inputs', 'pairs'))])
def test_nothing_is_known_to_last_or_hold_more_than_the_engine_says(seed, further):
    draw = random.Random(seed)
    seen = 0
    while seen < (10 if EVERY == 1 else 4):
        space = spaces.drawn_space(draw, further)
        judge = Judge(space, cluster_of(space.base))
        paths = [path for path in (spaces.drawn_path(space, draw) for _ in range(4)) if path]
        for path in paths:
            seconds, held, refusals = spaces.least(judge, path)
            outcome = predicted(space.schedule(path))
            if outcome.figures is None:
                continue
            seen += 1
            assert seconds <= outcome.figures.step or not spaces.is_steady(outcome), space.chosen(path)
            assert held <= outcome.peak, space.chosen(path)
            # What is refused by memory does not fit, and nothing else is refused that has a program.
            assert not refusals or outcome.peak > outcome.device, (space.chosen(path), refusals)


def test_the_best_plan_is_that_of_brute_force(file, whole):
    planning, answer = load_planning(file), whole
    every = [(one.figures.step, path) for path, one in spaces.outcomes(planning.space) if one.feasible and one.figures]
    assert len(every) >= 20
    step, path = min(every)
    assert answer.complete
    assert answer.gap == 0
    assert answer.best is not None
    assert answer.best.step == step
    assert answer.best.settings == {f'plan.{key}': value for key, value in planning.space.chosen(path).items()}
    # Not all were asked of the engine; the others are told by rule.
    assert len(answer.ranking) + answer.infeasible < len(every)
    assert sum(one.plans for one in answer.pruned) + len(answer.ranking) + answer.infeasible == answer.plans
    assert answer.open == 0


def test_a_search_that_looks_around_its_best_plan_ends_the_same_and_counts_every_plan_once(file, whole, monkeypatch):
    asked, found, near = [], Starts.found, Starts.near

    def noting(starts, path, limit):
        asked.append(path)
        return near(starts, path, limit)

    monkeypatch.setattr('simpar.planner.search.PATIENCE', 0)
    # It begins with the worst of its guesses, so that there are better ones near.
    monkeypatch.setattr(Starts, 'found', lambda starts, until: iter([max(found(starts, until))]))
    monkeypatch.setattr(Starts, 'near', noting)
    answer = load_planning(file).search(jobs=1)
    assert asked
    assert (answer.best.step, answer.best.settings) == (whole.best.step, whole.best.settings)
    assert sum(one.plans for one in answer.pruned) + len(answer.ranking) + answer.infeasible == answer.plans
    assert answer.open == 0


def test_plans_without_bounds_are_counted_apart_and_tried_near_the_best_plan(file, whole):
    elsewhere = 'tensor-context-pipeline-data'
    file.write_text(f'{FILE}    plan.placement: [{elsewhere}, {NEAREST_FIRST}]\n')
    answer = load_planning(file).search(jobs=1)
    assert answer.complete
    assert answer.never_bounded * 2 == answer.plans
    assert answer.best.step <= whole.best.step
    placed = [one for one in answer.ranking if one.settings['plan.placement'] == elsewhere]
    assert placed
    assert answer.open == answer.never_bounded - len(placed)
    told = f'were never bounded (plan.placement other than {NEAREST_FIRST}).'
    assert told in render(answer)
    assert 'never bounded' not in render(whole)
    file.write_text(f'{FILE}    plan.placement: [{elsewhere}]\n')
    with pytest.raises(ScheduleError, match='no bounds of ranks on other devices than those of their numbers'):
        load_planning(file)


def test_plans_that_do_not_fit_are_cut_off_by_memory_and_never_chosen(file):
    planning = load_planning(file, ['workload.batch=4096', 'workload.transformer.sequence=8192'])
    answer = planning.search(jobs=1)
    assert all(one.peak <= one.outcome.device for one in answer.ranking)
    assert 'memory' in {one.rule for one in answer.pruned}


def test_an_interrupted_search_answers_with_its_gap_and_goes_on_from_its_journal(file, whole, tmp_path):
    planning = load_planning(file)
    judge = Judge(planning.space, cluster_of(planning.schedule))
    rounds = 0

    def evaluate(paths):
        nonlocal rounds
        rounds += 1
        if rounds > 1:
            raise KeyboardInterrupt
        return [(path, predicted(planning.space.schedule(path))) for path in paths]

    found = Search(planning.space, judge, evaluate).run()
    assert not found.complete
    assert found.open > 0
    assert found.best is not None
    assert found.least <= whole.best.step <= found.best[0]
    assert found.gap == pytest.approx(1 - found.least / found.best[0])
    journal = tmp_path / 'rows'
    planning.search(jobs=1, journal=journal)
    lines = len(journal.read_text().splitlines())
    told = []
    again = planning.search(jobs=1, journal=journal, note=told.append)
    assert [(one.settings, one.step) for one in again.ranking] == [(one.settings, one.step) for one in whole.ranking]
    assert len(journal.read_text().splitlines()) == lines
    assert any('are finished' in text for text in told)


def test_a_search_without_time_answers_with_its_gap_and_ends_the_same_when_it_goes_on(file, whole, tmp_path):
    planning, journal = load_planning(file), tmp_path / 'rows'
    answer = planning.search(jobs=1, seconds=0, journal=journal)
    assert not answer.complete
    assert answer.best is not None
    assert answer.open > 0
    assert answer.least <= whole.best.step
    assert answer.gap == pytest.approx(1 - answer.least / answer.best.step)
    assert 'Proven: no plan of' in render(replace(answer, least=0.001))
    assert 'Nothing is proven yet' in render(replace(answer, least=0.0, gap=1.0))
    again = planning.search(jobs=1, journal=journal)
    assert [(one.settings, one.step) for one in again.ranking] == [(one.settings, one.step) for one in whole.ranking]
    assert (again.pruned, again.gap, again.open) == (whole.pruned, whole.gap, 0)


def test_a_judge_whose_time_is_over_says_nothing_of_nodes_and_still_guesses_at_a_first_plan(file):
    space = load_planning(file).space
    late, path = Judge(space, cluster_of(space.base), until=0.0), spaces.drawn_path(space, random.Random(3))
    at = max(depth for depth in range(1, len(path)) if late.judges(depth))
    assert (late(path[:at]).seconds, late(path[:at]).refusal) == (0.0, None)
    assert late(path, GUESS).seconds > 0


def test_processes_judge_nodes_as_this_one_does(file, monkeypatch):
    monkeypatch.setattr('simpar.planner.judge.REPAYS', -1.0)
    space = load_planning(file).space
    judge = Judge(space, cluster_of(space.base))
    draw = random.Random(3)
    nodes = [path[:depth] for path in (spaces.drawn_path(space, draw) for _ in range(3)) if path for depth in (5, 6, 8)]
    asked = [(path, 0) for path in nodes if judge.judges(len(path))]
    with closing(Workers(space, judge, 2)) as those:
        assert those.judge(asked) == [judge(path, turn) for path, turn in asked]
    assert len(asked) >= 6


@pytest.mark.parametrize('count', some([1, 2, 3, 4]))
def test_processes_predict_plans_as_this_one_does_and_none_is_waited_for_in_vain(file, monkeypatch, count):
    monkeypatch.setattr('simpar.planner.judge.REPAYS', -1.0)
    space = load_planning(file).space
    judge = Judge(space, cluster_of(space.base))
    schedules = [space.schedule(path) for path in itertools.islice(spaces.paths(space), count)]
    with closing(Workers(space, judge, 2)) as those:
        assert not those.ready
        those.judge([])
        assert those.ready
        found = dict(those.predict(schedules))
    assert [found[place].figures.step for place in range(count)] == [predicted(one).figures.step for one in schedules]


def test_what_splits_its_backward_holds_more_until_gradients_of_weights_are_done():
    schedule = spaces.asked(
        spaces.MODELS[0], 32, {'profile': 'a100-sxm-8', 'stack': 'none'}, zero=1, pipeline=2, micro_batches=8
    )
    held = []
    for outcome, _, least_held, _ in spaces.judged(schedule, order=['1f1b', 'zb-h1']):
        assert 0.9 * outcome.peak < least_held <= outcome.peak
        held.append(least_held)
    assert held[1] > held[0]


def test_what_a_framework_holds_and_waits_for_is_bounded_too():
    """Its buffers of gradients and of the loss, its sums of gradients at the end, and its host's begin of a step."""
    schedule = spaces.asked(spaces.MODELS[3], 64, TWO, expert=4, pipeline=2, micro_batches=4)
    for outcome, seconds, held, _ in spaces.judged(schedule, recompute=['none', 'full'], zero=[0, 1, 2, 3]):
        assert 0.7 * outcome.figures.step < seconds <= outcome.figures.step
        assert 0.9 * outcome.peak < held <= outcome.peak


SHARES = {'1f1b 0': 0.7, 'gpipe 0': 0.7, 'interleaved-1f1b 2': 0.7, 'looped-bfs 2': 0.7}
SHARES |= {'zb-h1 0': 0.0, 'zb-v 0': 0.0, 'dualpipe-v 0': 0.0}


@pytest.mark.parametrize('split', some([*SHARES], 2))
def test_sums_that_hosts_wait_for_behind_each_backward_are_known_and_never_too_long(split):
    """On slow links: a backward that is done in parts may hide its sums beside what follows."""
    slow = {**TWO, 'nodes': 4, 'links': {'infiniband': 0.05}}
    order, chunks = split.split()
    plan = {'pipeline': 2, 'order': order, 'chunks': int(chunks), 'micro_batches': 4, 'fusion': 'none'}
    late = {'exchange': 'fused', 'receive': 'late', 'reduce_gradients': 'end'}
    for outcome, seconds, held, refusals in spaces.judged(spaces.asked(EIGHT, 64, slow, **plan, **late), zero=[2, 3]):
        # By computation, and by what ends a step, at most 0.62 of whole backwards would be known.
        assert SHARES[split] * outcome.figures.step < seconds <= outcome.figures.step
        assert held <= outcome.peak
        assert not refusals


def test_gradients_of_experts_that_no_other_rank_holds_lie_in_no_buffer_of_shards():
    """They come with the first backward, so that they do not stand beside the activations of all forwards."""
    plan = {'tensor': 4, 'expert': 2, 'pipeline': 2, 'micro_batches': 4, 'order': 'gpipe', 'zero': 3}
    ((outcome, _, held, _),) = spaces.judged(spaces.asked(EIGHT, 32, TWO, **plan))
    assert 0.9 * outcome.peak < held <= outcome.peak


def test_full_gradients_of_a_micro_batch_are_held_until_its_backward_ends():
    """A stage whose shards are summed behind its backward holds more than shards."""
    ends = []
    for reduce in ('end', 'overlapped'):
        plan = {'zero': 3, 'micro_batches': 4, 'recompute': 'full', 'reduce_gradients': reduce}
        ((outcome, _, held, _),) = spaces.judged(spaces.asked(spaces.MODELS[1], 64, TWO, **plan))
        assert held <= outcome.peak
        ends.append(held)
    late, early = ends
    assert late > early


def test_a_message_that_others_wait_for_is_hidden_beside_what_is_computed_between_them():
    # A product of 10 s, its message of 4 s beside a second product, and a third that needs both.
    work = Work([10.0, 0.0], [12.5, 0.0], {1: 4.0}, Speeds(matrix=0.8, memory=0.5, collective=0.5), {})
    before, computes = [[], [0], [0], [1, 2]], [True, False, True, True]
    ahead, behind = last_ahead(before, computes), first_behind(before, computes)
    found = windows(ahead, behind, [0, 1, 0, 0], computes, [0, 1, 0, 0], work)
    # At half its speed it takes 8 s, in which products do 0.8 of their work.
    assert found == {3: [(0, pytest.approx(20 + 0.2 * 8))]}
    # A message that nobody waits for may be sent whenever.
    before, computes = before[:3], computes[:3]
    ahead, behind = last_ahead(before, computes), first_behind(before, computes)
    assert windows(ahead, behind, [0, 1, 0], computes, [0, 1, 0], work) == {}


def test_a_long_ring_has_fewer_windows_and_none_lasts_longer_than_all_between():
    # Computation and a message in turn, each of which needs the one before it.
    many = 1200
    computes, before = [True, False] * many, [[], *([place] for place in range(2 * many - 1))]
    work = Work([2.0, 0.0], [2.0, 0.0], {1: 3.0}, Speeds(1.0, 1.0, 1.0), {})
    found = windows(
        last_ahead(before, computes), first_behind(before, computes), [0, 1] * many, computes, [0, 1] * many, work
    )
    begins = {first for some in found.values() for first, _ in some}
    assert 256 <= len(begins) < 512
    assert all(seconds <= 2.5 * (place - first) for place, some in found.items() for first, seconds in some)
    assert max(seconds / (place - first) for place, some in found.items() for first, seconds in some) > 1.4


def test_keys_that_are_wrong_are_all_told_at_once(file):
    file.write_text(
        FILE.replace('plan.tensor: [1, 2]', 'plan.tensor: [1, two]')
        .replace('plan.copies: [1, 2]', 'plan.copies: {least: 4, most: 2}')
        .replace('plan.zero: [0, 1]', 'plan.zeros: [0, 1]')
    )
    with pytest.raises(ScheduleError) as wrong:
        load_planning(file)
    told = str(wrong.value)
    assert 'plan.copies' in told
    assert 'least 4 is above most 2' in told
    assert 'plan.zeros' in told
    assert re.search(r'plan.yaml:11: planner.keys: plan.tensor: not an integer \(got "two"\)', told)
    file.write_text(FILE.replace('plan.tensor: [1, 2]', 'plan.tensor: [1, two]'))
    with pytest.raises(ScheduleError) as wrong:
        load_planning(file)
    assert 'plan.yaml:11' in str(wrong.value)
    assert 'tensor' in str(wrong.value)


def test_the_command_tells_the_plan_and_saves_what_run_takes(file, whole, tmp_path, json_of):
    save = tmp_path / 'best.yaml'
    answer = json_of('plan', file, '--jobs', '1', '--gap', '5%', '--save', save)
    assert answer['gap'] <= 0.05
    assert answer['choice']['step'] <= answer['ranking'][0]['step'] * 1.03
    assert 'planner' not in yaml.safe_load(Path(save).read_text())
    assert json_of('run', save)['step'] == answer['choice']['step']
    screen = render(whole)
    assert 'Best plan:' in screen
    assert 'Proven: none of 128 plans is faster' in screen


def test_a_space_of_drawn_keys_has_all_plans_that_its_keys_make():
    schedule = spaces.asked(spaces.MODELS[0], 16, {'profile': 'a100-sxm-8'}, data=8)
    space = spaces.small_space(schedule, {'plan.tensor': [1, 2], 'plan.copies': {'least': 2}})
    assert space.values_of('tensor') == (1, 2)
    assert space.values_of('copies') == (2,)
    assert space.count == math.prod(map(len, space.values))


def test_a_stack_whose_clock_depends_on_the_whole_step_is_bounded_too():
    large = {'layers': 4, 'hidden': 8192, 'heads': 64, 'vocab': 8192, 'sequence': 2048}
    schedule = spaces.asked(large, 16, {'profile': 'a100-sxm-8', 'stack': 'megatron-core'}, tensor=4)
    ((outcome, seconds, *_),) = spaces.judged(schedule)
    assert seconds <= outcome.figures.step


@pytest.mark.parametrize('copies', [[2], [1, 2]])
def test_copies_that_are_given_are_bounded_as_copies_that_are_open(copies):
    schedule = spaces.asked(spaces.MODELS[1], 64, {'profile': 'a100-sxm-8', 'stack': 'none'}, tensor=2, micro_batches=2)
    for outcome, seconds, *_ in spaces.judged(schedule, copies=copies):
        assert 0.9 * outcome.figures.step < seconds <= outcome.figures.step


def test_what_grows_with_a_micro_batch_is_not_held_of_the_whole_batch():
    """Megatron's mask is of a micro-batch, and a node above one knows no micro-batch yet."""
    plan = {'tensor': 4, 'pipeline': 2, 'micro_batches': 512, 'recompute': 'full'}
    schedule = spaces.asked({**spaces.MODELS[0], 'sequence': 16384}, 512, {**TWO, 'nodes': 1}, **plan)
    outcome, _, _, refusals = next(spaces.judged(schedule, copies=[1, 2]))
    assert outcome.feasible
    assert refusals == []


def test_an_order_that_is_none_is_told_and_not_left_out(file):
    file.write_text(FILE.replace('[1f1b, gpipe]', '[1f1b, zigzag]'))
    with pytest.raises(ScheduleError, match=r"plan.order: no such order \(got 'zigzag'\)"):
        load_planning(file)


def test_a_network_whose_layers_are_a_list_is_planned_too(printed):
    few = ('--set', 'cluster.devices=2', '--set', 'plan.tensor=1', '--seconds', '1')
    assert 'Best plan: ' in printed('plan', example_folder() / 'multi_copy.yaml', '--jobs', '1', '--brief', *few)


# The planner's actions: what is sent inside of them is known before copies are chosen; what a rank holds at them


@pytest.mark.parametrize(('model', 'key', 'share'), [(MODELS[0], 'tensor', 0.4), (MODELS[3], 'expert', 0.37)])
def test_a_step_of_messages_is_known_before_copies_are_chosen(model, key, share):
    schedule = asked(model, 32, {'profile': 'a100-sxm-8', 'nodes': 4, 'devices': 1}, order='1f1b')
    keys = {f'plan.{one}': 'fixed' for one in KEYS}
    keys |= {f'plan.{key}': [2], 'plan.pipeline': [2], 'plan.micro_batches': [4], 'plan.copies': [1, 2]}
    space = small_space(schedule, keys)
    judge = Judge(space, cluster_of(space.base))
    leaves = [tuple(copies if one == 'copies' else 0 for one in space.keys) for copies in (0, 1)]
    steps = [predicted(space.schedule(leaf)).figures.step for leaf in leaves]
    known = judge(leaves[0][: space.keys.index('recompute') + 1]).seconds
    # By computation alone 0.33 and 0.35 would be known.
    assert share * steps[0] < known <= min(steps)


@pytest.mark.parametrize('order', some(['1f1b', 'gpipe', 'interleaved-1f1b', 'zb-h1', 'zb-v', 'dualpipe-v'], 2))
def test_what_a_rank_holds_at_each_action_is_what_a_plain_walk_counts(order):
    clock = timed(named_order(order, 4, 16, 0), awaited=False)
    for rank in range(clock.ranks):
        found = moments_of(clock, rank)
        stages = zip(
            *(each.T.tolist() for each in (found.live, found.later, found.gradients, found.casts)), strict=True
        )
        kinds = [KINDS[number] for number in found.kind.tolist()]
        told = {
            (kind, own, joined, *map(tuple, each))
            for kind, own, joined, each in zip(kinds, found.own.tolist(), found.joined.tolist(), stages, strict=True)
        }
        assert told == set(_walked(clock, rank))
        assert len(kinds) == len(told)


def _walked(clock, rank):
    """Each action's kind, stage and whether it is joined; of each stage what is live, later, and there."""
    mine = [stage for stage, holder in enumerate(clock.placement) if holder == rank]
    kinds, stages, joins = (each.tolist() for each in clock.row(rank))
    names = [KINDS[kind] + '+' * joined for kind, joined in zip(kinds, joins, strict=True)]
    row = list(zip(names, stages, strict=True))
    for place, (kind, own) in enumerate(row):
        done = [[one[0] for one, stage in row[:place] if stage == each] for each in mine]
        left = [[one[0] for one, stage in row[place:] if stage == each] for each in mine]
        behind = [[one[0] for one, stage in row[place + 1 :] if stage == each] for each in mine]
        begun = [[*ones, *([kind[0]] if each == own else [])] for ones, each in zip(done, mine, strict=True)]
        yield (
            kind[0],
            mine.index(own),
            kind.endswith('+'),
            tuple(ones.count('F') - ones.count('B') - ones.count('I') for ones in done),
            tuple(ones.count('I') - ones.count('W') for ones in done),
            tuple(
                {'B', 'W'} & {*ones} != set() and {'B', 'W'} & {*rest} != set()
                for ones, rest in zip(done, left, strict=True)
            ),
            tuple('F' in ones and {'B', 'I'} & {*rest} != set() for ones, rest in zip(begun, behind, strict=True)),
        )


# The planner's load: a step is no shorter than all that a rank sends over its outermost link, in any stream


SPEEDS = Speeds(matrix=0.8, memory=0.5, collective=0.5)


def test_the_outermost_link_is_that_between_nodes_where_there_are_several():
    profile = load_profile('h100-sxm-8')
    assert outermost(cluster(profile, nodes=1).topology, 8) == 'nvlink'
    assert outermost(cluster(profile, nodes=2).topology, 16) == 'infiniband'
    # Devices of the first node alone need no other.
    assert outermost(cluster(profile, nodes=2).topology, 8) == 'nvlink'


def test_a_link_that_each_pair_has_to_itself_is_shared_by_nobody():
    assert outermost(cluster(load_profile('ascend910a-8'), nodes=1).topology, 4) == ''


def test_half_of_a_link_for_four_seconds_is_all_of_it_for_two():
    assert load_of(4.0, [('infiniband/3', 0.5), ('nvlink/3', 1.0)], 'infiniband') == 2.0
    assert load_of(4.0, [('nvlink/3', 1.0)], 'infiniband') == 0.0


def test_messages_of_two_streams_take_as_long_as_both_and_computation_beside_them_as_it_may():
    sums = Sums(alone=10.0, slowed=12.5, load=4.0)
    assert sums.least(0.0, SPEEDS) == pytest.approx(10.0 + 0.2 * 4.0)
    # Together they outlast all computation, so none of it is told.
    assert sums.least(26.0, SPEEDS) == pytest.approx(30.0)


@pytest.mark.parametrize('plan', some(load_table(__file__, 'test_the_load_of_a_rank_is_that_of_its_program')))
def test_the_load_of_a_rank_is_that_of_its_program(plan):
    """On links so slow that nothing else counts, the least step is what the whole program sends over the busiest.

    Few words, as what is sent of the first and the last layer is not told beforehand.
    """
    slow = {'profile': 'h100-sxm-8', 'nodes': 8, 'devices': 2, 'links': {'infiniband': 0.02}}
    schedule = asked(MODELS[3] | {'vocab': 1024}, 64, slow, **plan)
    ((outcome, seconds, *_),) = judged(schedule)
    assert 0.9 * _sent(schedule) <= seconds <= outcome.figures.step


def _sent(schedule):
    """Seconds of the link between nodes that the busiest rank's collectives take, by the whole program."""
    case = case_of(schedule)
    costs = price(case.program, case.cluster)
    most = 0.0
    for rank in range(case.program.world):
        total = 0.0
        role = case.program.role(rank)
        for index in role.op_class.tolist():
            op = case.program.op_classes[index]
            if op.kind != 'collective':
                continue
            groups = case.program.partitions[op.partition].groups_GP.tolist()
            one = costs.communication[index][next(number for number, ranks in enumerate(groups) if rank in ranks)]
            names = {costs.links[link]: part for link, part in one.links}
            total += one.transfer * names.get(f'infiniband/{rank}', 0.0)
        most = max(most, total)
    return most
