"""Checkpoints: by name, in any plan, whole or not at all, read without running code; with damage named; own data."""

import json
import math
import pickle
import random
import resource
import shutil
from hashlib import sha256
from itertools import pairwise
from math import prod
from pathlib import Path

import pytest
import torch
from tables import load_table, load_tree

from executor import checkpoint
from executor.commands import run_job
from executor.options import parser
from executor.tensors import boxes
from executor.train import train
from simpar import from_module, load_case
from simpar.errors import ScheduleError

GPT = load_table(__file__, 'GPT')
PLANS = load_tree(__file__, 'PLANS')


def kept(file, folder, *settings, steps, **options):
    return train(file, settings, steps=steps, processes=False, checkpoint=folder, **options)


def apart(one, other):
    """How far the parameters of two trainings are apart, relative, in norm."""
    assert one.parameters.keys() == other.parameters.keys()
    flat, also = (torch.cat([of.parameters[name].double().flatten() for name in one.parameters]) for of in (one, other))
    return float((flat - also).norm() / flat.norm())


def test_a_stretch_of_a_flat_tensor_is_cut_into_boxes_in_its_order():
    for seed in range(300):
        draw = random.Random(seed)
        shape = tuple(draw.randint(1, 4) for _ in range(draw.randint(1, 4)))
        begin = draw.randint(0, prod(shape))
        end = draw.randint(begin, prod(shape))
        full = torch.arange(prod(shape)).view(shape)
        cut = [
            full[tuple(slice(low, low + size) for low, size in zip(*box, strict=True))].flatten()
            for box in boxes(shape, begin, end)
        ]
        assert [number for one in cut for number in one.tolist()] == list(range(begin, end))


@pytest.mark.parametrize('plan', [*PLANS, 'plan={data: 2, tensor: 2, zero: 3, shard_form: flat}'])
def test_a_training_is_asked_about_checkpoints_of_the_size_that_is_written(tmp_path, plan):
    """Each weight and state once, from which ``--train checkpoint_link=RATE`` has its seconds."""
    kept(GPT, tmp_path, plan, steps=1)
    tensors = checkpoint.contents_of(checkpoint.latest(tmp_path)).tensors
    assert load_case(GPT, [plan]).throughput.checkpoint == sum(4 * prod(one.shape) for one in tensors.values())


@pytest.mark.parametrize('mixed', [False, True])
def test_every_form_of_shards_is_kept_by_name(tmp_path, mixed):
    """From plan to plan, a step each: packed buffers, states alone, stages; with masters and a loss scale, too.

    `make prove NAME=kept` takes 30 steps, and fp32.
    """
    more = (
        ['workload.precision=bf16', 'workload.loss_scale=64',
         'workload.optimizer={adamw: {learning_rate: 0.01, master_weights: true}}'] if mixed else []
    )  # fmt: skip
    dtype = '' if mixed else 'fp64'
    plans = PLANS[:3] if mixed else PLANS
    whole = train(GPT, more, steps=len(plans) + 1, processes=False, dtype=dtype)
    kept(GPT, tmp_path, *more, steps=1, dtype=dtype)
    for steps, plan in enumerate(plans, 2):
        found = kept(GPT, tmp_path, *more, plan, steps=steps, dtype=dtype)
    # bf16 rounds weights to 8 bits, and another order of sums may round one to its neighbour.
    assert apart(whole, found) < (2**-6 if mixed else 1e-10)
    assert max(abs(a - b) for a, b in zip(whole.losses, found.losses, strict=True)) < (1e-2 if mixed else 1e-12)
    names = checkpoint.contents_of(checkpoint.latest(tmp_path)).tensors
    assert all(f'{kind}{name}' in names for name in whole.parameters for kind in ('', 'm:', 'v:'))
    assert not mixed or all(f'{kind}:{name}' in names for name in whole.parameters for kind in ('master', 'updates'))


def test_a_training_that_goes_on_equals_one_that_was_not_interrupted(tmp_path):
    """To the bit, dropout, data order and Adam's correction included."""
    drop = ['workload.transformer.dropout=0.1']
    whole = train(GPT, drop, steps=6, processes=False)
    kept(GPT, tmp_path, *drop, steps=2, every=2)
    found = kept(GPT, tmp_path, *drop, steps=6, every=2)
    assert found.losses == whole.losses
    assert all(torch.equal(whole.parameters[name], of) for name, of in found.parameters.items())
    again = kept(GPT, tmp_path, *drop, steps=6)
    assert again.losses == whole.losses
    assert all(torch.equal(whole.parameters[name], of) for name, of in again.parameters.items())
    assert sorted(path.name for path in tmp_path.glob('step*')) == ['step-000004', 'step-000006']


def test_ranks_of_a_pool_keep_the_same_as_ranks_of_one_process(tmp_path):
    here = kept(GPT, tmp_path / 'here', steps=2, dtype='fp64')
    there = train(GPT, steps=2, dtype='fp64', checkpoint=tmp_path / 'there', every=1)
    assert apart(here, there) < 1e-12


@pytest.mark.filterwarnings('ignore:torch.distributed is disabled')
def test_torch_reads_what_is_kept(tmp_path):
    import torch.distributed.checkpoint as dcp

    found = kept(GPT, tmp_path, 'plan={data: 4, zero: 3, fusion: all}', steps=1)
    state = {name: torch.zeros_like(of) for name, of in found.parameters.items()}
    dcp.load(state, checkpoint_id=tmp_path / 'step-000001', no_dist=True)
    assert all(torch.equal(state[name], of) for name, of in found.parameters.items())


def sealed(folder, told):
    """Write another list, with its digest."""
    text = json.dumps(told)
    (folder / checkpoint.LIST).write_text(text)
    (folder / checkpoint.DIGEST).write_text(f'{sha256(text.encode()).hexdigest()}  {checkpoint.LIST}\n')


class Bomb:
    def __reduce__(self):
        return (Path.touch, (Path(self.path),))


def test_a_checkpoint_that_is_read_runs_no_code(tmp_path):
    kept(GPT, tmp_path, steps=1)
    folder = tmp_path / 'step-000001'
    bomb = Bomb()
    bomb.path = str(tmp_path / 'hit')
    (folder / '.metadata').write_bytes(pickle.dumps(bomb))
    kept(GPT, tmp_path, steps=1)
    kept(GPT, tmp_path, steps=2)
    told = json.loads((tmp_path / 'step-000002' / checkpoint.LIST).read_text())
    file = tmp_path / 'step-000002' / '__0_0.distcp'
    torch.save(bomb, file)
    for stored in told['tensors'].values():
        for chunk in stored['chunks']:
            chunk.update(offset=0, length=file.stat().st_size, digest=sha256(file.read_bytes()).hexdigest())
    sealed(tmp_path / 'step-000002', told)
    with pytest.raises(ScheduleError, match=r'__0_0\.distcp: cannot be read'):
        kept(GPT, tmp_path, steps=3)
    assert not Path(bomb.path).exists()


def changed(folder, change):
    told = json.loads((folder / 'step-000001' / checkpoint.LIST).read_text())
    change(told)
    sealed(folder / 'step-000001', told)


@pytest.mark.parametrize(
    ('change', 'what'),
    [
        (lambda told: told['tensors'].pop('norm.gain'), 'has no norm.gain'),
        (lambda told: told['tensors']['norm.gain'].update(shape=[8]), r'norm.gain has shape \[8\], the model \[16\]'),
        (lambda told: told['tensors']['norm.gain'].update(chunks=[]), 'norm.gain is not whole: 0 of 16 elements'),
        (lambda told: told['tensors']['norm.gain']['chunks'][0].update(file='../../secret'), 'another name than'),
        (lambda told: told.update(step='many'), 'is not the list of a checkpoint: step'),
        (lambda told: told.update(format='simpar checkpoint 9'), 'is not the list of a checkpoint: format'),
        (lambda told: told.update(seed=5), 'was trained with seed 5, not 0'),
    ],
)
def test_a_wrong_checkpoint_is_named(tmp_path, change, what):
    kept(GPT, tmp_path, steps=1)
    changed(tmp_path, change)
    with pytest.raises(ScheduleError, match=what):
        kept(GPT, tmp_path, steps=2)


def test_what_was_not_finished_is_no_checkpoint(tmp_path):
    """A crash while ranks write leaves the checkpoint before; the next run removes what is left."""
    kept(GPT, tmp_path, steps=1)
    program = load_case(GPT).program
    half = checkpoint.folder_of(tmp_path, 2)
    checkpoint.write_rank(half, program, 0, {one.name: torch.zeros(program.local_shape(one)) for one in program.tensors
                                             if one.kind in ('parameter', 'state')})  # fmt: skip
    assert checkpoint.latest(tmp_path) == tmp_path / 'step-000001'
    assert len(kept(GPT, tmp_path, steps=2).losses) == 2
    assert sorted(path.name for path in tmp_path.glob('step*')) == ['step-000001', 'step-000002']


def test_a_folder_that_hosts_do_not_share_is_named(tmp_path):
    chunk = {'offsets': [0], 'sizes': [1], 'file': '__3_0.distcp', 'offset': 0, 'length': 9}
    written = json.dumps([['w', [1], 'float32', chunk]])
    whole = checkpoint.Contents(step=1, seed=0, program='', losses=(), tensors={})
    with pytest.raises(ScheduleError, match=r'__3_0\.distcp is not there: its rank wrote on another disk'):
        checkpoint.finish(tmp_path / 'step-000001', [written], whole)


OWN = load_table(__file__, 'OWN')


def own():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))


def own_batches(count):
    draw = torch.Generator().manual_seed(5)
    return [(torch.randn(8, 4, generator=draw), torch.randn(8, 2, generator=draw)) for _ in range(count)]


@pytest.fixture(scope='module')
def imported():
    return from_module(own(), torch.randn(8, 4))


def test_the_users_module_on_the_users_data_is_trained_as_by_torch(tmp_path, imported):
    """Against autograd and torch.optim.SGD, over a restart."""
    module, data = own(), own_batches(5)
    kept(OWN, tmp_path, steps=2, module=imported, data=data, every=2)
    found = kept(OWN, tmp_path, steps=5, module=imported, data=iter(data))
    optimizer, losses = torch.optim.SGD(module.parameters(), lr=0.1), []
    for x, target in data:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(module(x), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert found.losses == pytest.approx(losses, rel=1e-5)
    assert all(torch.allclose(of, found.parameters[name], atol=1e-6) for name, of in module.state_dict().items())
    module.load_state_dict(found.parameters)


@pytest.mark.parametrize(
    ('data', 'what'),
    [
        ([], 'data: ends after 0 batches, 1 steps are asked for'),
        ([torch.zeros(8, 4)], "data, batch 0: has no input 'target'"),
        ([(torch.zeros(8, 4), torch.zeros(8, 2), torch.zeros(1))], 'has 3 tensors, the model reads 2'),
        ([(torch.zeros(7, 4), torch.zeros(8, 2))], r'has shape \[7, 4\], not \[8, 4\]'),
        ([(torch.zeros(8, 4), torch.zeros(8, 2, dtype=torch.int64))], 'is int64, not fp32'),
        ([(torch.zeros(8, 4), [1, 2])], 'is list, not a tensor'),
        ([{'other': torch.zeros(8, 4)}], "has 'other', which the model does not read"),
    ],
)
def test_wrong_data_are_named(imported, data, what):
    with pytest.raises(ScheduleError, match=what):
        train(OWN, processes=False, module=imported, data=data)


def test_classes_outside_of_the_vocabulary_are_named():
    tokens = torch.zeros(8, 8, dtype=torch.int64)
    with pytest.raises(ScheduleError, match='labels: has values from 0 to 32, not from 0 to 31'):
        train(GPT, processes=False, data=[{'tokens': tokens, 'labels': tokens.clone().fill_diagonal_(32)}])


def test_a_case_is_trained_as_its_file_is():
    case = load_case(GPT)
    assert train(case, processes=False).losses == train(GPT, processes=False).losses
    with pytest.raises(ScheduleError, match='a case has all its values already'):
        train(case, ['plan.data=1'], processes=False)


def test_a_device_keeps_and_goes_on_as_threads_do(tmp_path):
    """To the bit: batches of one's own, a checkpoint within the run, a run that goes on, and one that changes over."""
    draw = torch.Generator().manual_seed(3)
    batches = [{'tokens': torch.randint(32, (8, 8), generator=draw)} for _ in range(3)]
    batches = [{**one, 'labels': one['tokens'].roll(-1, 1)} for one in batches]

    def train_on(folder, steps, **where):
        return train(TWO, steps=steps, data=batches, checkpoint=tmp_path / folder if folder else None, every=1, **where)

    wanted = train_on('', 3, processes=False)
    virtual, pool = {'device': 'virtual'}, {'device': 'virtual', 'transport': 'gloo'}
    train_on('begun', 2, **virtual)
    for goes_on in (virtual, {'processes': False}, pool):
        shutil.copytree(tmp_path / 'begun', tmp_path / str(goes_on))
        found = train_on(str(goes_on), 3, **goes_on)
        # The rings of gloo sum in another order.
        exact = goes_on is not pool
        assert apart(wanted, found) <= (0 if exact else 1e-4)
        assert found.losses == (wanted.losses if exact else pytest.approx(wanted.losses, rel=1e-5))
    with pytest.raises(ScheduleError, match='processes of their own'):
        train_on('', 1, processes=False, **pool)
    with pytest.raises(ScheduleError, match="device: is 'gpu'; write one of 'cpu', 'cuda', 'npu', 'virtual'"):
        train_on('', 1, device='gpu')


NETWORK = load_table(__file__, 'NETWORK')
TWO = GPT.replace('devices: 4', 'devices: 2').replace('plan: {data: 2, tensor: 2}', 'plan: {data: 2}')
OLD = Path(__file__).parent / 'old_checkpoint'


def equal(one, other):
    return all(torch.equal(one.parameters[name], of) for name, of in other.parameters.items())


def batches(wrong):
    """Four, of which the second has a target that is no number."""
    draw = torch.Generator().manual_seed(5)
    data = [(torch.randn(8, 4, generator=draw), torch.randn(8, 2, generator=draw)) for _ in range(4)]
    data[1][1][3, 1] = wrong
    return data


# losses that are no numbers


@pytest.mark.parametrize('wrong', [math.nan, math.inf])
def test_a_step_without_a_finite_loss_is_gone_on_from(tmp_path, wrong):
    """A loss scale leaves its update out, so the training is sound; its list of losses must be read back."""
    data = batches(wrong)
    undisturbed = train(NETWORK, steps=4, processes=False, data=data)
    kept(NETWORK, tmp_path, steps=2, data=data)
    continued = kept(NETWORK, tmp_path, steps=4, data=data)
    assert [math.isfinite(loss) for loss in undisturbed.losses] == [True, False, True, True]
    assert repr(continued.losses) == repr(undisturbed.losses)
    assert equal(continued, undisturbed)


def test_a_checkpoint_of_an_older_simpar_is_gone_on_from(tmp_path, capsys):
    """Written by the version before digests; null stands there for a loss that was no number."""
    shutil.copytree(OLD, tmp_path / 'kept')
    data = batches(math.nan)
    continued = kept(NETWORK, tmp_path / 'kept', steps=4, data=data)
    undisturbed = train(NETWORK, steps=4, processes=False, data=data)
    assert math.isnan(continued.losses[1])
    assert continued.losses[2:] == pytest.approx(undisturbed.losses[2:], rel=1e-5)
    note = capsys.readouterr().err
    assert 'step-000002 is of an older simpar: without digests' in note
    assert note.count('\n') == 1
    assert kept(NETWORK, tmp_path / 'kept', steps=4, data=data).losses[2:] == continued.losses[2:]
    assert not capsys.readouterr().err


def test_an_older_checkpoint_of_a_deeper_model_is_named(tmp_path):
    """It does not say what was trained, but it has tensors that the model does not have."""
    shutil.copytree(OLD, tmp_path / 'kept')
    shallow = NETWORK.replace(', {dense: {in: 8, out: 2}}', '').replace('out: 8', 'out: 2')
    with pytest.raises(ScheduleError, match='which this model and optimizer do not have'):
        kept(shallow, tmp_path / 'kept', steps=4)


# damage


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def chunk_of(folder, name):
    return checkpoint.contents_of(folder).tensors[name].chunks[0]


def flip_in(folder, name):
    """Flip a bit in the middle of what a checkpoint holds of a tensor."""
    chunk = chunk_of(folder, name)
    flip(folder / chunk.file, chunk.offset + chunk.length // 2)


DAMAGE = [
    (lambda folder: flip_in(folder, 'dense0.weight'), r'__0_0\.distcp: is damaged: bytes \d+ to \d+'),
    (lambda folder: (folder / '__0_0.distcp').unlink(), r'__0_0\.distcp: cannot be read: No such file'),
    (lambda folder: flip(folder / checkpoint.LIST, 40), r'simpar\.json: is damaged: its digest is not'),
    (lambda folder: flip(folder / checkpoint.DIGEST, 3), r'simpar\.json: is damaged: its digest is not'),
    (lambda folder: (folder / checkpoint.DIGEST).unlink(), r'simpar\.json: is damaged: it has no digest'),
]


@pytest.mark.parametrize(('damage', 'what'), DAMAGE)
def test_damage_is_named_and_the_checkpoint_before_is_good(tmp_path, damage, what):
    undisturbed = kept(NETWORK, tmp_path, steps=3, every=1)
    last = tmp_path / 'step-000003'
    damage(last)
    with pytest.raises(ScheduleError, match=what) as error:
        kept(NETWORK, tmp_path, steps=4)
    assert f'remove {last}, and training goes on from step-000002' in str(error.value)
    # Whoever does so gets the very same training.
    shutil.rmtree(last)
    assert equal(kept(NETWORK, tmp_path, steps=3), undisturbed)


def test_every_byte_that_is_read_has_a_digest(tmp_path):
    """Whichever bit of a file changes, what is read is right, or the damage is named."""
    kept(NETWORK, tmp_path, steps=1)
    folder = tmp_path / 'step-000001'
    contents = checkpoint.contents_of(folder)
    chunks = [chunk for stored in contents.tensors.values() for chunk in stored.chunks]
    for file in {chunk.file for chunk in chunks}:
        stretches = sorted((one.offset, one.offset + one.length) for one in chunks if one.file == file)
        assert stretches[0][0] == 0
        assert stretches[-1][1] == (folder / file).stat().st_size
        assert all(end == begin for (_, end), (begin, _) in pairwise(stretches))


def test_a_finished_training_does_not_give_damaged_weights(tmp_path):
    kept(NETWORK, tmp_path, steps=1)
    flip_in(tmp_path / 'step-000001', 'dense1.bias')
    with pytest.raises(ScheduleError, match=r'__0_0\.distcp: is damaged'):
        kept(NETWORK, tmp_path, steps=1)


# another training


def change(old, new):
    assert old in TWO
    return TWO.replace(old, new)


UNLIKE = [
    (change('layers: 2', 'layers: 1'), 'workload.transformer.layers: is 1, but {} was trained with 2'),
    (change('sequence: 8', 'sequence: 8, activation: relu'), 'activation: is relu, but {} was trained with gelu'),
    (change('sequence: 8', 'sequence: 8, dropout: 0.1'), 'dropout: is 0.1, but {} was trained with 0.0'),
    (change('batch: 8', 'batch: 16'), 'workload.batch: is 16, but {} was trained with 8'),
    (change('{adamw: {learning_rate: 0.01}}', 'sgd'), 'workload.optimizer: is sgd, but {} was trained with adamw'),
    (change('0.01', '0.02'), 'adamw.learning_rate: is 0.02, but {} was trained with 0.01'),
    (change('batch: 8', 'batch: 8\n  gradients: fp64'), 'workload.gradients: is fp64, but {} was trained with null'),
]


@pytest.fixture(scope='module')
def begun(tmp_path_factory):
    folder = tmp_path_factory.mktemp('begun')
    kept(TWO, folder, steps=1)
    return folder


@pytest.mark.parametrize(('file', 'what'), UNLIKE)
def test_another_training_does_not_go_on_silently(begun, file, what):
    with pytest.raises(ScheduleError) as error:
        kept(file, begun, steps=2)
    assert what.format(begun / 'step-000001') in str(error.value)
    assert [path.name for path in begun.glob('step*')] == ['step-000001']


def test_all_that_differs_is_told_at_once_where_it_stands(begun, put):
    file = put('other.yaml', change('layers: 2', 'layers: 3').replace('batch: 8', 'batch: 4').replace('adamw', 'adam'))
    with pytest.raises(ScheduleError) as error:
        kept(file, begun, steps=2)
    places = [problem.place.rpartition(':')[2] for problem in error.value.problems]
    assert places == ['5', '6', '8']


def test_another_dtype_and_other_data_are_named(begun):
    with pytest.raises(ScheduleError, match=r'dtype: is fp64, but .* was trained with that of the schedule'):
        kept(TWO, begun, steps=2, dtype='fp64')
    tokens = torch.zeros(8, 8, dtype=torch.int64)
    with pytest.raises(ScheduleError, match=r'data: is given by the caller, but .* was trained with drawn'):
        kept(TWO, begun, steps=2, data=[{'tokens': tokens, 'labels': tokens}] * 2)


@pytest.mark.parametrize('settings', load_table(__file__, 'test_how_it_is_computed_may_change'))
def test_how_it_is_computed_may_change(begun, tmp_path, settings):
    shutil.copytree(begun, tmp_path / 'kept')
    undisturbed = train(TWO, steps=2, processes=False)
    continued = kept(TWO, tmp_path / 'kept', *settings, steps=2)
    assert continued.losses == pytest.approx(undisturbed.losses, rel=1e-5)


def test_another_module_of_the_same_weights_is_named(tmp_path):
    def imported(activation):
        torch.manual_seed(3)
        module = torch.nn.Sequential(torch.nn.Linear(4, 8), activation, torch.nn.Linear(8, 2))
        return from_module(module, torch.randn(8, 4))

    data = [(torch.ones(8, 4), torch.ones(8, 2))] * 3
    kept(OWN, tmp_path, steps=1, module=imported(torch.nn.Tanh()), data=data)
    with pytest.raises(ScheduleError, match=r'workload\.module\.graph\.1/gelu: is .* was trained with absent'):
        kept(OWN, tmp_path, steps=2, module=imported(torch.nn.GELU()), data=data)
    assert len(kept(OWN, tmp_path, steps=2, module=imported(torch.nn.Tanh()), data=data).losses) == 2


def test_the_command_trains_and_goes_on_only_where_it_is_told_to(tmp_path, put, capsys):
    root = tmp_path / 'kept'
    file = put('job.yaml', NETWORK)
    words = ['run', str(file), '--device', 'virtual', '--checkpoint', str(root)]

    def losses(*more):
        assert run_job(parser().parse_args([*words, '--json', *more])) == 0
        return json.loads(capsys.readouterr().out)['losses']

    begun = losses('--steps', '2', '--resume')
    with pytest.raises(ScheduleError, match='step-000002 is there already; write --resume'):
        losses('--steps', '3')
    assert losses('--steps', '3', '--resume')[:2] == begun
    with pytest.raises(ScheduleError, match='--save: a training with checkpoints has no such flag'):
        losses('--save', 'trace.json', '--resume')


def test_two_trainings_do_not_write_into_one_folder(tmp_path):
    with checkpoint.locked(tmp_path), pytest.raises(ScheduleError, match=r'another training writes here \(process \d+'):
        kept(GPT, tmp_path, steps=1)


def test_a_full_disk_is_told_in_its_own_words_and_the_checkpoint_before_is_good(tmp_path):
    """It was "unexpected pos 704"."""
    kept(NETWORK, tmp_path, steps=1)
    bound = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, bound[1]))
    try:
        with pytest.raises(OSError, match=r'File too large.*step-000002'):
            kept(NETWORK, tmp_path, steps=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, bound)
    assert equal(kept(NETWORK, tmp_path, steps=2), kept(NETWORK, tmp_path / 'undisturbed', steps=2))


def test_damage_of_both_checkpoints_is_told(tmp_path):
    kept(NETWORK, tmp_path, steps=2, every=1)
    for folder in tmp_path.glob('step-*'):
        flip_in(folder, 'dense0.weight')
    with pytest.raises(ScheduleError, match='no earlier checkpoint is good'):
        kept(NETWORK, tmp_path, steps=3)
