"""The public files whose settings the inputs in launch_files have; only names and values are theirs."""

from pathlib import Path

FOLDER = Path(__file__).parent / 'launch_files'
MODEL = Path(__file__).parent.parent / 'examples' / 'llama3_8b.json'
"""The model beside DeepSpeed's files, which have none."""
_MEGATRON, _MINDSPEED = 'NVIDIA/Megatron-LM examples', 'Ascend/MindSpeed-LLM examples'
_TITAN, _FORMERS = 'pytorch/torchtitan torchtitan/models', 'mindspore-lab/mindformers'
_DEEPSPEED = 'deepspeedai/DeepSpeedExamples training'
SOURCES = {
    'megatron_gpt3_175b.sh': f'{_MEGATRON}/gpt3/train_gpt3_175b_distributed.sh',
    'megatron_llama3_8b_fp8.sh': f'{_MEGATRON}/llama/train_llama3_8b_h100_fp8.sh',
    'megatron_mixtral_8x7b.sh': f'{_MEGATRON}/mixtral/train_mixtral_8x7b_distributed.sh',
    'mindspeed_llama2_7b.sh': f'{_MINDSPEED}/mindspore/llama2/pretrain_llama2_7b_ms.sh',
    'mindspeed_qwen3_8b.sh': f'{_MINDSPEED}/mcore/qwen3/pretrain_qwen3_8b_4K_ptd.sh',
    'mindspeed_deepseek3_671b.sh': f'{_MINDSPEED}/mcore/deepseek3/pretrain_deepseek3_671b_4k_ptd.sh',
    'torchtitan_llama3_8b.toml': f'{_TITAN}/llama3/train_configs/llama3_8b.toml',
    'torchtitan_llama3_405b.toml': f'{_TITAN}/llama3/train_configs/llama3_405b.toml',
    'torchtitan_deepseek_v3_671b.toml': f'{_TITAN}/deepseek_v3/train_configs/deepseek_v3_671b.toml',
    'deepspeed_fp16_zero3.json': f'{_DEEPSPEED}/autotuning/hf/dsconfigs/ds_config_fp16_z3.json',
    'deepspeed_pipeline.json': f'{_DEEPSPEED}/pipeline_parallelism/ds_config.json',
    'deepspeed_autotp.json': f'{_DEEPSPEED}/tensor_parallel/hf_integration/configs/ds_config.json',
    'mindformers_llama3_1_8b.yaml': f'{_FORMERS} research/llama3_1/llama3_1_8b/finetune_llama3_1_8b.yaml',
    'mindformers_qwen3_32b.yaml': f'{_FORMERS} configs/qwen3/pretrain_qwen3_32b_4k.yaml',
    'mindformers_mixtral_8x7b.yaml': f'{_FORMERS} research/mixtral/mixtral_8x7b/pretrain_mixtral-8x7b.yaml',
}


def model_beside(name: str) -> str:
    """The model that a file needs beside it."""
    return str(MODEL) if name.endswith('.json') else ''


DEVICES = {
    'torchtitan_llama3_8b.toml': '8', 'torchtitan_deepseek_v3_671b.toml': '64', 'deepspeed_fp16_zero3.json': '8',
    'deepspeed_pipeline.json': '8', 'deepspeed_autotp.json': '8',
}  # fmt: skip
"""How many devices files run on that do not say it."""
WITHOUT = {
    'mindspeed_deepseek3_671b.sh': {'expert-model-parallel-size': '16', 'expert-tensor-parallel-size': '4'},
}
"""What files have that is refused, and what is taken in its place: experts on data ranks."""


def given_beside(name: str) -> dict[str, str]:
    """What a file needs beside it: on how many devices it runs, and what is taken in the place of what is refused."""
    return WITHOUT.get(name, {'devices': DEVICES[name]} if name in DEVICES else {})
