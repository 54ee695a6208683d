"""Cross-entropy in operators: what each brings with it, what searches make of it, and what is refused."""

import math
import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from combined_cases import combined_case
from every import some
from mindspore_networks import tuples
from tables import load_table
from test_resolve_strategies import CASES, workload_of
from trains import ONCE, trains

from simpar import Plan, Transformer, Workload, cluster, load_profile
from simpar.errors import Infeasible
from simpar.lower import lower
from simpar.model import Dense, Network, Relu
from simpar.model.library.cross_entropy import LOSS_OPERATORS
from simpar.resolve import find_strategies

ROWS, CLASSES, RANKS = 32, 8, 8
H100 = load_profile('h100-sxm-8')
COLUMNS = {name: ((4, 2), (4, 1)) if name in ('shifted', 'log_softmax') else ((4, 2),) for name in
           ('shifted', 'exp', 'sum', 'log_softmax', 'smooth')}  # fmt: skip
"""Classes cut where they may be: not where a maximum or an element is taken."""


def network(*widths, batch=ROWS, **options):
    dense = [Dense(inputs=inputs, outputs=outputs, bias=False) for inputs, outputs in pairwise(widths)]
    layers = [layer for one in dense for layer in (one, Relu())][:-1]
    options = {'loss_operators': 'mindspore-2.10', **options}
    return Workload(model=Network(layers=tuple(layers)), batch=batch, **options)


def messages(workload, plan=None, ranks=RANKS):
    """Collectives behind the network's own, as (phase, operator, bytes): gradients of weights left out."""
    program = lower(workload, plan or Plan(dataset='full-batch'), ranks)
    found = (op for op in program.op_classes if op.kind == 'collective' and op.phase != 'W')
    return Counter((op.phase, op.operator, op.bytes) for op in found)


NUMBERS = Counter({('F', 'all_reduce', 4.0): 3, ('I', 'all_reduce', 4.0): 2})
"""Both sums and the count; what comes back to both sums, for the count has no gradient."""


def test_by_rows_there_are_sums_of_one_number():
    assert messages(network(16, CLASSES)) == NUMBERS
    assert messages(network(16, CLASSES), ranks=1) == Counter()


def test_a_sum_that_stays_whole_gathers_what_it_sums_and_scatters_its_gradient():
    logits = ROWS * CLASSES * 4.0
    found = messages(network(16, CLASSES, loss_strategies={'sum': ((1, 1),)}))
    assert found - NUMBERS == Counter({('F', 'all_gather', logits): 1, ('I', 'reduce_scatter', logits): 1})


def test_classes_that_are_cut_are_summed_over_their_ranks():
    """A column of 8 rows on every rank, of exponentials and of log-probabilities, and gradients of both columns."""
    found = messages(network(16, CLASSES, loss_strategies=COLUMNS), Plan(dataset='full-batch', all_to_all=True))
    assert found['F', 'all_reduce', ROWS / 4 * 4.0] == 2


def test_more_rows_than_fp16_counts_to_have_a_loss_and_gradients():
    """Of equal logits, ln 8; and what one operator computes of the same."""
    import torch

    from executor.inprocess import InProcess

    many = network(4, CLASSES, batch=2**17, precision='fp16', loss_scale=1024.0)
    one = replace(many, loss_operators='one', loss_strategy=((2, 1), (2,)))
    ours, theirs = (InProcess(lower(workload, Plan(), 2), dtype=None).run(1) for workload in (many, one))
    assert ours.losses == pytest.approx(theirs.losses, rel=1e-3)
    assert ours.losses[0] == pytest.approx(math.log(CLASSES), rel=1e-2)
    for name, gradient in theirs.gradients.items():
        assert torch.linalg.vector_norm(gradient - ours.gradients[name]) < 1e-2 * torch.linalg.vector_norm(gradient)


@pytest.mark.parametrize('copies', [1, 2])
@pytest.mark.parametrize('ignored', [range(0, ROWS, 3), range(ROWS // 4), range(ROWS // 2), range(ROWS)], ids=str)
@pytest.mark.parametrize('strategies', [{}, {'sum': ((1, 1),), 'count': ((1, 1),), 'likelihood_sum': ((1,),)}])
def test_labels_are_ignored_on_all_ranks_as_on_one(monkeypatch, copies, ignored, strategies):
    """Some, all of a rank's, of a copy's, of all; where none counts torch has no loss either, and no gradients."""
    import torch

    from executor import reference
    from executor.inprocess import InProcess
    from executor.ranks import real

    drawn = real.batch_of

    def some_ignored(name, *how):
        return drawn(name, *how).index_fill(0, torch.tensor(ignored), -100) if name == 'labels' else drawn(name, *how)

    for module in (real, reference):
        monkeypatch.setattr(module, 'batch_of', some_ignored)
    workload, plan = network(8, 16, CLASSES, loss_strategies=strategies), Plan(dataset='full-batch', copies=copies)
    ours = InProcess(lower(workload, plan, 4)).run(1)
    theirs = reference.Reference(workload, plan).run(1)
    assert ours.losses == pytest.approx(theirs.losses, rel=1e-12, nan_ok=True)
    assert math.isnan(ours.losses[0]) == (len(ignored) >= ROWS / copies)
    for name, gradient in theirs.gradients.items():
        torch.testing.assert_close(ours.gradients[name], gradient, rtol=1e-10, atol=1e-16)


# --- searches --------------------------------------------------------------------------------------------------------

CLASSIFIERS = [name for name, record in CASES.items() if record['case'].get('loss') == 'ce']


def compiled(record):
    """Operators behind the network's last, with the strategies of all that has dims."""
    entries = record['strategies']
    last = max(place for place, entry in enumerate(entries) if entry['op'] == 'BiasAdd')
    cut = [(entry['op'], tuple(filter(None, tuples(entry['in_strategy'])))) for entry in entries[last + 1 :]]
    return Counter((primitive, strategy) for primitive, strategy in cut if strategy)


@pytest.mark.parametrize('name', CLASSIFIERS)
def test_double_recursive_search_cuts_them_as_the_compiler_did(name):
    """But for the count, which the compiler writes twice and then merges."""
    record = CASES[name]
    devices = record['case']['device_num']
    hardware = cluster(H100, nodes=max(1, devices // 8), devices=min(8, devices))
    workload = replace(workload_of(record['case']), loss_operators='mindspore-2.10')
    plan = Plan(search='double-recursive', dataset='full-batch')
    found = find_strategies(workload, plan, hardware)
    chosen = found.workload.loss_strategies
    ours = Counter((LOSS_OPERATORS[one].primitive, strategy) for one, strategy in chosen.items())
    assert compiled(record) - ours == Counter([('SumExt', chosen['count'])])
    assert not ours - compiled(record)
    assert {f'loss.{one}' for one in chosen} <= found.origins.keys()
    lower(found.workload, found.plan, devices)


@pytest.mark.parametrize('objective', ['bytes', 'time'])
def test_exact_search_cuts_all_of_them_by_rows(objective):
    hardware = cluster(H100, devices=RANKS)
    plan = Plan(search='exact', objective=objective, dataset='full-batch')
    found = find_strategies(network(64, 256, CLASSES, batch=256), plan, hardware)
    first = {name: strategy[0][0] for name, strategy in found.workload.loss_strategies.items()}
    assert first.keys() == LOSS_OPERATORS.keys()
    assert len(set(first.values())) == 1
    recursive = next(one for one in found.proposals if 'double recursive 2.10' in (one.name, *one.also))
    assert found.proposals[0].sent <= recursive.sent
    assert find_strategies(found.workload, plan, hardware).workload == found.workload


def test_propagation_starts_at_an_operator_of_the_loss():
    given = {'exp': ((8, 1),)}
    workload = network(16, 32, CLASSES, loss_strategies=given)
    found = find_strategies(workload, Plan(search='sharding-propagation'), cluster(H100, devices=RANKS))
    assert found.origins['loss.exp'] == 'given'
    assert found.origins['loss.shifted'] == 'propagated from loss.exp as MindSpore 2.10 does'
    assert found.workload.loss_strategies['exp'] == given['exp']
    assert found.workload.model.layers[-1].strategy


# --- what is refused -------------------------------------------------------------------------------------------------


def test_the_loss_is_never_run_again():
    for pattern in ('loss*', 'loss.exp'):
        with pytest.raises(
            Infeasible, match=rf'recompute: {re.escape(pattern)} names no operator .*; there are dense0$'
        ):
            lower(network(16, CLASSES), Plan(recompute=(pattern,)), 1)


def test_a_transformer_has_its_loss_in_operators_too():
    model = Transformer(layers=1, hidden=8, heads=2, vocab=16, sequence=4, init_std=0.3)
    workload = Workload(model=model, batch=8, loss_operators='mindspore-2.10')
    for plan in (Plan(data=4), Plan(tensor=2, data=2, copies=2), Plan(pipeline=2, micro_batches=2, stages=(1, 0))):
        trains(workload, plan, 4, steps=ONCE)


# The loss summed over ranks for display: which ranks have the sum, where it stands, and that it is the loss


GPT = Workload(model=Transformer(layers=2, hidden=32, heads=4, vocab=64, sequence=8), batch=16)
CUT = Network(layers=(Dense(inputs=16, outputs=16, strategy=((2, 4), (4, 1))), Relu()))


def summed(program, rank=0):
    """Actions of a rank that make the loss or sum it, in order; of a sum also its bytes and ranks."""
    role, found = program.role(rank), []
    for slot in range(len(role)):
        op = program.op(role, slot)
        if 'loss' in op.writes:
            found.append(program.action(role, slot))
        elif 'loss' in op.reads:
            ranks = program.partitions[op.partition].members(rank)
            found.append((program.action(role, slot), op.bytes, ranks))
    return found


# Cut by degrees


def test_two_data_ranks_sum_four_bytes_behind_the_loss():
    assert summed(lower(GPT, Plan(data=2, sum_loss=True), 2)) == ['loss.F', ('loss.total.all_reduce.F', 4, (0, 1))]


@pytest.mark.parametrize('plan', [Plan(sum_loss=True), Plan(tensor=4, sum_loss=True), Plan(data=2)], ids=str)
def test_nothing_is_summed_where_all_ranks_have_all_of_it_or_nobody_asks(plan):
    assert summed(lower(GPT, plan, plan.data * plan.tensor or plan.tensor)) == ['loss.F']


# Cut by strategies


@pytest.mark.parametrize(
    ('strategy', 'ranks'), load_table(__file__, 'test_along_all_axes_that_cut_a_loss_it_is_summed')
)
def test_along_all_axes_that_cut_a_loss_it_is_summed(strategy, ranks):
    """What a strategy does not need repeats, innermost."""
    program = lower(Workload(model=CUT, batch=16, loss='mse', loss_strategy=strategy), Plan(sum_loss=True), 8)
    assert summed(program, 1) == ['loss.F', ('loss.total.all_reduce.F', 4, ranks)]


# Nobody waits for it, and it is the loss


@pytest.mark.parametrize('seed', some(range(0, 120, 4)))
def test_the_sums_of_a_step_are_its_loss(seed, monkeypatch):
    """On every rank of the last stage the sums of all copies and micro-batches add up to what machines report."""
    from executor import inprocess

    totals, communicate = [], inprocess.communicate

    def watched(ops, messages):
        given = communicate(ops, messages)
        if ops[0].writes == ('loss.total',):
            totals.extend(float(total) for (total,) in given)
        return given

    workload, plan, world = combined_case(seed)
    program = lower(workload, plan, world)
    monkeypatch.setattr(inprocess, 'communicate', watched)
    (loss,) = inprocess.InProcess(program, seed).run().losses
    cut = any(op.writes == ('loss.total',) for op in program.op_classes)
    assert len(totals) == cut * plan.micro_batches * plan.copies * world // plan.pipeline
    assert not cut or sum(totals) == pytest.approx(loss * (world // plan.pipeline), rel=1e-12)
