"""Checkpoints that are gone on from: with losses that are no numbers, with damage, and of another training."""

import math
import shutil
from itertools import pairwise
from pathlib import Path

import pytest

torch = pytest.importorskip('torch', reason='needs the extra torch')
pytestmark = pytest.mark.torch

from executor import checkpoint
from executor.train import train
from simpar import from_module
from simpar.errors import ScheduleError

NETWORK = """
simpar: 1
cluster: {profile: cpu-gloo, devices: 2}
workload:
  network: [{dense: {in: 4, out: 8}}, {relu: {}}, {dense: {in: 8, out: 2}}]
  batch: 8
  loss: mse
  precision: fp32
  loss_scale: 8
  optimizer: {adamw: {learning_rate: 0.01}}
plan: {data: 2}
"""
GPT = """
simpar: 1
cluster: {profile: cpu-gloo, devices: 2}
workload:
  transformer: {layers: 2, hidden: 16, heads: 2, vocab: 32, sequence: 8}
  batch: 8
  precision: fp32
  optimizer: {adamw: {learning_rate: 0.01}}
plan: {data: 2}
"""
OLD = Path(__file__).parent / 'old_checkpoint'


def kept(file, folder, *settings, steps, **options):
    return train(file, settings, steps=steps, processes=False, checkpoint=folder, **options)


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
    (lambda folder: flip_in(folder, 'v:dense1.weight'), r'__0_0\.distcp: is damaged: bytes \d+ to \d+'),
    (lambda folder: flip_in(folder, 'updates:dense1.weight'), r'__0_0\.distcp: is damaged: bytes \d+ to \d+'),
    (lambda folder: (folder / '__0_0.distcp').write_bytes(b''), r'__0_0\.distcp: is damaged: bytes \d+ to \d+'),
    (lambda folder: (folder / '__0_0.distcp').unlink(), r'__0_0\.distcp: cannot be read: No such file'),
    (lambda folder: flip(folder / checkpoint.LIST, 40), r'simpar\.json: is damaged: its digest is not'),
    (lambda folder: flip(folder / checkpoint.LIST, -2), r'simpar\.json: is damaged: its digest is not'),
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


def test_damage_of_both_checkpoints_is_told(tmp_path):
    kept(NETWORK, tmp_path, steps=2, every=1)
    for folder in tmp_path.iterdir():
        flip_in(folder, 'dense0.weight')
    with pytest.raises(ScheduleError, match='no earlier checkpoint is good'):
        kept(NETWORK, tmp_path, steps=3)


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


def test_ranks_of_processes_name_damage_too(tmp_path):
    kept(NETWORK, tmp_path, steps=1)
    flip_in(tmp_path / 'step-000001', 'm:dense0.bias')
    with pytest.raises(ScheduleError, match=r'__0_0\.distcp: is damaged'):
        train(NETWORK, steps=2, checkpoint=tmp_path)


def test_a_finished_training_does_not_give_damaged_weights(tmp_path):
    kept(NETWORK, tmp_path, steps=1)
    flip_in(tmp_path / 'step-000001', 'dense1.bias')
    with pytest.raises(ScheduleError, match=r'__0_0\.distcp: is damaged'):
        kept(NETWORK, tmp_path, steps=1)


# another training


def change(old, new):
    assert old in GPT
    return GPT.replace(old, new)


UNLIKE = [
    (change('layers: 2', 'layers: 1'), 'workload.transformer.layers: is 1, but {} was trained with 2'),
    (change('layers: 2', 'layers: 3'), 'workload.transformer.layers: is 3, but {} was trained with 2'),
    (change('sequence: 8', 'sequence: 8, activation: relu'), 'activation: is relu, but {} was trained with gelu'),
    (change('sequence: 8', 'sequence: 8, dropout: 0.1'), 'dropout: is 0.1, but {} was trained with 0.0'),
    (change('sequence: 8', 'sequence: 8, norm_epsilon: 0.1'), 'norm_epsilon: is 0.1, but {} was trained with 1e-05'),
    (change('batch: 8', 'batch: 16'), 'workload.batch: is 16, but {} was trained with 8'),
    (change('adamw:', 'adam:'), 'workload.optimizer: is adam, but {} was trained with adamw'),
    (change('{adamw: {learning_rate: 0.01}}', 'sgd'), 'workload.optimizer: is sgd, but {} was trained with adamw'),
    (change('0.01', '0.02'), 'adamw.learning_rate: is 0.02, but {} was trained with 0.01'),
    (change('batch: 8', 'batch: 8\n  clip_norm: 1'), 'workload.clip_norm: is 1.0, but {} was trained with 0.0'),
    (change('precision: fp32', 'precision: bf16'), 'workload.precision: is bf16, but {} was trained with fp32'),
    (change('batch: 8', 'batch: 8\n  gradients: fp64'), 'workload.gradients: is fp64, but {} was trained with null'),
]


@pytest.fixture(scope='module')
def begun(tmp_path_factory):
    folder = tmp_path_factory.mktemp('begun')
    kept(GPT, folder, steps=1)
    return folder


@pytest.mark.parametrize(('file', 'what'), UNLIKE)
def test_another_training_does_not_go_on_silently(begun, file, what):
    with pytest.raises(ScheduleError) as error:
        kept(file, begun, steps=2)
    assert what.format(begun / 'step-000001') in str(error.value)
    assert [path.name for path in begun.iterdir()] == ['step-000001']


def test_all_that_differs_is_told_at_once_where_it_stands(begun, tmp_path):
    file = tmp_path / 'other.yaml'
    file.write_text(change('layers: 2', 'layers: 3').replace('batch: 8', 'batch: 4').replace('adamw', 'adam'))
    with pytest.raises(ScheduleError) as error:
        kept(file, begun, steps=2)
    places = [problem.place.rpartition(':')[2] for problem in error.value.problems]
    assert places == ['5', '6', '8']


def test_another_dtype_and_other_data_are_named(begun):
    with pytest.raises(ScheduleError, match=r'dtype: is fp64, but .* was trained with that of the schedule'):
        kept(GPT, begun, steps=2, dtype='fp64')
    tokens = torch.zeros(8, 8, dtype=torch.int64)
    with pytest.raises(ScheduleError, match=r'data: is given by the caller, but .* was trained with drawn'):
        kept(GPT, begun, steps=2, data=[{'tokens': tokens, 'labels': tokens}] * 2)


@pytest.mark.parametrize('settings', [
    ['plan={data: 1, tensor: 2}'], ['plan={data: 2, zero: 2, copies: 2}'],
    ['cluster={profile: cpu-gloo, devices: 1}', 'plan={}'],
    ['plan={pipeline: 2, micro_batches: 4, recompute: full}'], ['workload.transformer.attention=unfused'],
])  # fmt: skip
def test_how_it_is_computed_may_change(begun, tmp_path, settings):
    shutil.copytree(begun, tmp_path / 'kept')
    undisturbed = train(GPT, steps=2, processes=False)
    continued = kept(GPT, tmp_path / 'kept', *settings, steps=2)
    assert continued.losses == pytest.approx(undisturbed.losses, rel=1e-5)


MODULE = """
simpar: 1
cluster: {profile: cpu-gloo, devices: 2}
workload: {batch: 8, loss: mse, precision: fp32, optimizer: {sgd: {learning_rate: 0.1}}}
plan: {data: 2}
"""


def test_another_module_of_the_same_weights_is_named(tmp_path):
    def imported(activation):
        torch.manual_seed(3)
        module = torch.nn.Sequential(torch.nn.Linear(4, 8), activation, torch.nn.Linear(8, 2))
        return from_module(module, torch.randn(8, 4))

    data = [(torch.ones(8, 4), torch.ones(8, 2))] * 3
    kept(MODULE, tmp_path, steps=1, module=imported(torch.nn.Tanh()), data=data)
    with pytest.raises(ScheduleError, match=r'workload\.module\.graph\.1/gelu: is .* was trained with absent'):
        kept(MODULE, tmp_path, steps=2, module=imported(torch.nn.GELU()), data=data)
    assert len(kept(MODULE, tmp_path, steps=2, module=imported(torch.nn.Tanh()), data=data).losses) == 2
