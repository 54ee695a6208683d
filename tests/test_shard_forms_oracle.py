"""Shards of sizes that do not divide against torch's own: FSDP2 pads rows, FSDP1 flattens the parameters of a layer.

Every collective of a step by kind and bytes, what a rank holds of weights, gradients, states and gathered weights, and
what is trained, on gloo in fp64.
"""

from collections import defaultdict
from dataclasses import replace

import pytest
from rank_jobs import found_by

from executor.inprocess import InProcess
from executor.ranks.pool import Pool
from simpar.lower import lower
from simpar.memory import memory, sequential
from simpar.model import Conv2d, Dense, Flatten, Gelu, LayerNorm, Network, Relu, RmsNorm
from simpar.plans import Plan
from simpar.workload import AdamW, Transformer, Workload

RANKS, STEPS = 3, 2
OPTIMIZER = AdamW(learning_rate=0.01, epsilon=1e-5, weight_decay=0.1)


def workload(model, **choices):
    return Workload(model=model, batch=12, loss='mse', precision='fp64', optimizer=OPTIMIZER, **choices)


MODULES = {
    'mlp': workload(
        Network(
            layers=(
                Dense(inputs=5, outputs=7),
                Relu(),
                Dense(inputs=7, outputs=11),
                Relu(),
                Dense(inputs=11, outputs=4),
            ),
            init_std=0.4,
        )
    ),
    'fewer rows than ranks': workload(
        Network(layers=(Dense(inputs=7, outputs=2), Relu(), Dense(inputs=2, outputs=1)), init_std=0.4)
    ),
    'convolution': workload(
        Network(
            layers=(Conv2d(inputs=2, outputs=5, kernel=3), Relu(), Flatten(), Dense(inputs=45, outputs=7, bias=False)),
            input=(2, 5, 5),
            init_std=0.3,
        )
    ),
    'norms': workload(
        Network(
            layers=(Dense(inputs=6, outputs=10), LayerNorm(), Gelu(), Dense(inputs=10, outputs=5), RmsNorm()),
            input=(6,),
            init_std=0.4,
        )
    ),
    'gpt': replace(
        workload(Transformer(layers=2, hidden=10, heads=5, vocab=13, sequence=7, ffn=17, init_std=0.3)),
        loss='cross-entropy',
    ),
    'gpt, grouped queries': replace(
        workload(Transformer(layers=1, hidden=16, heads=4, kv_heads=2, vocab=11, sequence=5, ffn=19, init_std=0.3)),
        loss='cross-entropy',
    ),
}
STAGES = {
    'zero 1, 2 micro-batches': (Plan(zero=1, micro_batches=2), False, False),
    'zero 2': (Plan(zero=2), False, True),
    'zero 2, 2 micro-batches': (Plan(zero=2, micro_batches=2), False, True),
    'zero 3': (Plan(zero=3), True, True),
    'zero 3, 2 micro-batches': (Plan(zero=3, micro_batches=2, prefetch=0), True, True),
}
"""Plan; whether torch gathers twice; whether it reduces every micro-batch."""
ENGINES = {'padded': 'fsdp2', 'flat': 'fsdp1'}
FORMS = {'padded': tuple(STAGES), 'flat': ('zero 2', 'zero 3')}
"""FSDP1 gathers again for every micro-batch, so it is asked for one."""
TOLD = ('mlp', 'fewer rows than ranks', 'convolution', 'gpt, grouped queries')
"""The modules that the suite looks at; ``make prove-zero`` looks at all, on more ranks."""
SOME = {'padded': ('zero 1, 2 micro-batches', 'zero 2, 2 micro-batches', 'zero 3'), 'flat': FORMS['flat']}


def jobs(modules, stages=FORMS, batch=12):
    return {
        (module, form, stage): {
            'workload': replace(MODULES[module], batch=batch),
            'engine': ENGINES[form],
            'twice': STAGES[stage][1],
            'each': STAGES[stage][2],
            'micro_batches': STAGES[stage][0].micro_batches,
            'seed': seed,
            'steps': STEPS,
        }
        for seed, module in enumerate(modules)
        for form in ENGINES
        for stage in stages[form]
    }


@pytest.fixture(scope='module')
def theirs(tmp_path_factory):
    return found_by('sharded_ranks', jobs(TOLD, SOME), RANKS, tmp_path_factory.mktemp('sharded'))


@pytest.fixture(scope='module')
def pool():
    with Pool(RANKS, timeout=60) as ranks:
        yield ranks


def program_of(module, form, stage, ranks=RANKS, batch=12):
    return lower(replace(MODULES[module], batch=batch), replace(STAGES[stage][0], shard_form=form), ranks)


def messages(program):
    """Kind and bytes of the collectives of a step of a rank."""
    (role,) = program.roles
    ops = [program.op(role, slot) for slot in range(len(role))]
    return sorted((op.operator, int(op.bytes)) for op in ops if op.kind == 'collective')


def held(program, kind, like=''):
    names = program.tensors_of_role[0]
    return sum(
        program.local_bytes(tensor)
        for tensor in program.tensors
        if tensor.kind == kind and tensor.name in names and tensor.name.startswith(like)
    )


def gathered(program):
    """Bytes of a layer's gathered weights."""
    found = defaultdict(int)
    for tensor in program.tensors:
        if tensor.kind == 'gathered':
            found[tensor.name.partition('.')[0]] += program.local_bytes(tensor)
    return dict(found)


def states(program):
    """Elements of a first moment on the rank that has most of it."""
    return held(program, 'state', 'm:') // 4


def updated(program):
    """Bytes of the gradients that updates read, and free."""
    names = {name for op in program.op_classes if op.phase == 'U' for name in op.frees}
    return sum(
        program.local_bytes(tensor) for tensor in program.tensors if tensor.kind == 'gradient' and tensor.name in names
    )


def same_as_torch(program, found, seed):
    """Bytes of every collective and of what is held, and what is trained; how far that is off."""
    for rank in found:
        assert messages(program) == rank['messages']
        assert updated(program) == rank['gradients']
        wanted = gathered(program)
        if wanted:
            assert held(program, 'parameter') == rank['weights']
            assert wanted == rank['gathered']
        else:
            # Full weights stay where torch gathers them.
            assert held(program, 'parameter') == sum(rank['gathered'].values())
        # Torch's optimizers have no state for rows that only pad; ours says what the first rank has, which is most.
        assert 8 * states(program) >= rank['states']
    assert 8 * states(program) == found[0]['states']
    run = InProcess(program, seed).run(STEPS)
    off = {
        name: float((run.parameters[name].reshape(value.shape) - value).norm() / value.norm())
        for name, value in found[0]['parameters'].items()
    }
    assert max(off.values()) <= 1e-10, off
    return max(off.values())


@pytest.mark.parametrize('form', ENGINES)
@pytest.mark.parametrize('module', TOLD)
def test_messages_memory_and_weights_are_torchs(theirs, module, form):
    for job in theirs[0]:
        if job[:2] == (module, form):
            same_as_torch(program_of(*job), [rank[job] for rank in theirs], TOLD.index(module))


def test_kinds_held_over_a_step_add_up_to_the_shards():
    """The same bytes, as the memory of a step has them over its time."""
    program = program_of('mlp', 'padded', 'zero 3')
    line = memory(sequential(program)).rank(0).by_kind()
    most = dict(zip(line.names, line.bytes.max(axis=0).tolist(), strict=True))
    assert most['parameter'] == held(program, 'parameter')
    assert most['gradient'] >= updated(program)
    assert most['gathered'] <= sum(gathered(program).values())


@pytest.mark.parametrize('form', ENGINES)
def test_on_gloo_it_trains_what_torch_trains(theirs, pool, form):
    """Our executor's collectives send the padding as torch's do."""
    module, stage = TOLD[-1], 'zero 3'
    run = pool.run(program_of(module, form, stage), steps=STEPS, seed=len(TOLD) - 1, dtype='fp64', keep=True)
    for name, value in theirs[0][module, form, stage]['parameters'].items():
        assert float((run.parameters[name].reshape(value.shape) - value).norm() / value.norm()) <= 1e-10, name


def test_another_form_is_noticed(theirs):
    """What does not divide stays full: other messages."""
    program = lower(MODULES['mlp'], replace(STAGES['zero 3'][0], shard_form='dim'), RANKS)
    assert messages(program) != theirs[0]['mlp', 'padded', 'zero 3']['messages']
