"""Families that are others by another name, texts of larger models, checkpoints of 8 bits: counts of weights."""

import json

import pytest
from tables import load_table, load_tree

from simpar.errors import ScheduleError
from simpar.schedule import load_schedule


def read(config, tmp_path, **beside):
    path = tmp_path / 'config.json'
    path.write_text(json.dumps(config))
    work = {'model': str(path), 'sequence': 16, 'batch': 8, **beside}
    return load_schedule({'simpar': 1, 'cluster': 'h100-sxm-8', 'workload': work, 'plan': {'data': 8}})


PUBLISHED = load_table(__file__, 'PUBLISHED')
"""Counts of parameters as the models' safetensors have them, and their configs."""
FAMILIES = load_tree(__file__, 'FAMILIES')


@pytest.mark.parametrize('name', PUBLISHED)
def test_a_config_of_another_name_has_the_published_parameters(name, tmp_path):
    count, config = PUBLISHED[name]
    assert read(config, tmp_path).workload.model.graph(8).parameters == count


# Python 3.10 has transformers of some months before.
@pytest.mark.filterwarnings('ignore:.torch.jit.script. is deprecated:DeprecationWarning')
@pytest.mark.parametrize('kind', FAMILIES)
def test_transformers_counts_the_same_of_a_small_one(kind, tmp_path):
    import torch

    transformers = pytest.importorskip('transformers', reason='needs the extra test')
    if kind not in transformers.CONFIG_MAPPING:
        pytest.skip(f'transformers {transformers.__version__} has no {kind}')
    tokens = {'pad_token_id': None, 'bos_token_id': 1, 'eos_token_id': 2}
    config = transformers.AutoConfig.for_model(kind, **FAMILIES[kind], **tokens)
    with torch.device('meta'):
        model = transformers.AutoModelForCausalLM.from_config(config)
    told = {**json.loads(json.dumps(config.to_dict(), default=str)), 'model_type': kind}
    told.pop('architectures', None)
    counted = read(told, tmp_path).workload.model.graph(8).parameters
    # A bias that chooses experts is a parameter there at times, and is not trained.
    assert counted == sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def test_yarn_may_have_no_ramp(tmp_path):
    scaling = {
        'type': 'yarn', 'factor': 32.0, 'original_max_position_embeddings': 4096, 'beta_fast': 1.0, 'beta_slow': 1.0,
    }  # fmt: skip
    model = read({'model_type': 'llama', 'rope_scaling': scaling, **FAMILIES['arcee']}, tmp_path).workload.model
    assert model.rope_scaling[2:4] == (1.0, 1.0)


@pytest.mark.parametrize(('config', 'told'), load_tree(__file__, 'test_what_is_not_modelled_is_refused_with_a_way_on'))
def test_what_is_not_modelled_is_refused_with_a_way_on(config, told, tmp_path):
    with pytest.raises(ScheduleError, match=told):
        read(config, tmp_path)
