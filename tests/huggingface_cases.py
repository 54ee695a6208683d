"""Tiny models of transformers, their configs read by ours, and their parameters under our names."""

import json
import re
from contextlib import nullcontext
from copy import deepcopy

import torch
from tables import load_table, load_tree
from torch.overrides import TorchFunctionMode

from simpar import Plan, load_schedule

SEQUENCE, BATCH = 8, 8
TINY, STRETCHED, MIXTURES = (load_tree(__file__, name) for name in ('TINY', 'STRETCHED', 'MIXTURES'))
"""Configs by kind; STRETCHED are of rotary that looks at how long a sample is, which has 8 tokens."""
PLANS = {
    'one': (Plan(), 1),
    'data-tensor-sequence-zero': (Plan(data=2, tensor=2, sequence_parallel=True, zero=1), 4),
    'tensor-pipeline-copies': (Plan(tensor=2, pipeline=2, micro_batches=2, copies=2, recompute='full'), 4),
    'data-copies-zero': (Plan(data=2, copies=2, zero=3), 2),
    'all': (Plan(data=2, tensor=2, sequence_parallel=True, pipeline=2, micro_batches=2, copies=2, zero=2,
                 recompute='selective'), 8),
    'data-pipeline': (Plan(data=2, pipeline=2, micro_batches=4), 4),
    'data-recompute': (Plan(data=2, zero=1, recompute='full'), 2),
    'tensor-sequence-copies': (Plan(tensor=2, sequence_parallel=True, copies=2, recompute='full'), 2),
}  # fmt: skip
"""Plan and ranks."""


class Unnarrowed(TorchFunctionMode):
    """The one patch of transformers: what it asks for in fp32 is made in a wider dtype where the model has one.

    It lifts the casts of RMSNorm, of the angles of rotary and of softmax, so that a model in fp64 is one.
    """

    def __init__(self, dtype):
        super().__init__()
        self.wide = torch.promote_types(dtype, torch.float32)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        def widened(value):
            return self.wide if value is torch.float32 else value

        if func is torch.Tensor.float:
            return args[0].to(self.wide)
        found = {name: widened(value) for name, value in (kwargs or {}).items()}
        return func(*map(widened, args), **found)


def transformers_model(config, dtype, *, patched=True):
    """A model of transformers."""
    from transformers import AutoConfig, AutoModelForCausalLM

    # It writes into mappings that it is given.
    kept = {key: value for key, value in deepcopy(config).items() if key != 'model_type'}
    # Fused kernels of experts take no fp64.
    plain = {'attn_implementation': 'eager', 'experts_implementation': 'eager'}
    made = AutoConfig.for_model(config['model_type'], **kept, **plain)
    with Unnarrowed(dtype) if patched else nullcontext():
        # Buffers that are made in fp32 are wide, too.
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype if patched else torch.float32)
        try:
            return AutoModelForCausalLM.from_config(made).to(dtype)
        finally:
            torch.set_default_dtype(before)


def schedule_of(config, folder, more=''):
    """The schedule of a config."""
    (folder / 'config.json').write_text(json.dumps(config, indent=2))
    path = folder / 'schedule.yaml'
    path.write_text(
        'simpar: 1\ncluster: h100-sxm-8\n'
        f'workload: {{model: config.json, sequence: {SEQUENCE}, batch: {BATCH}, precision: fp32{more}}}\n'
        'plan: {data: 8}\n'
    )
    return load_schedule(path)


# Names.

LAYER = re.compile(r'layer(\d+)\.(.*)')
LLAMA = load_table(__file__, 'LLAMA')
OUTSIDE = {'embedding.weight': 'model.embed_tokens.weight', 'norm': 'model.norm', 'head': 'lm_head'}
GEMMA = {**LLAMA, 'norm2': 'pre_feedforward_layernorm', 'post_norm1': 'post_attention_layernorm',
         'post_norm2': 'post_feedforward_layernorm'}  # fmt: skip
PARTS = {
    'gpt2': {'norm1': 'ln_1', 'norm2': 'ln_2', 'proj': 'attn.c_proj', 'fc1': 'mlp.c_fc', 'fc2': 'mlp.c_proj',
             'qkv': 'attn.c_attn'},
    'phi': {**LLAMA, 'proj': 'self_attn.dense', 'fc1': 'mlp.fc1', 'fc2': 'mlp.fc2'},
    'gemma2': GEMMA,
    'gemma3_text': GEMMA,
    'olmo2': GEMMA,
}  # fmt: skip
OUTSIDE_OF = {
    'gpt2': {'embedding.weight': 'transformer.wte.weight', 'position.weight': 'transformer.wpe.weight',
             'norm': 'transformer.ln_f'},
    'phi': {**OUTSIDE, 'norm': 'model.final_layernorm'},
}  # fmt: skip


def their_names(kind, model, ours, *, gains=1.0):
    """Tensors under our names as tensors under those of transformers.

    Arguments: ``gains``, what a gain of theirs counts from: Gemma's begin at zero, gradients have none.
    """
    parts, outside = PARTS.get(kind, LLAMA), OUTSIDE_OF.get(kind, OUTSIDE)
    found = {}
    for name, tensor in ours.items():
        inside = LAYER.fullmatch(name)
        if not inside:
            owner, _, which = name.rpartition('.')
            full = outside.get(name) or f'{outside[owner]}.{_gain(which)}'
            found[full] = tensor
            continue
        layer = f'{"transformer.h" if kind == "gpt2" else "model.layers"}.{inside[1]}'
        found.update((f'{layer}.{part}', value) for part, value in _inside(kind, model, parts, inside[2], tensor))
    norms = [name for name in found if 'norm' in name] if kind.startswith('gemma') else []
    return {name: value - gains if name in norms else value for name, value in found.items()}


MIXTURE = {'router.weight': 'mlp.gate.weight', 'experts.fc2.weight': 'mlp.experts.down_proj', 'shared.gate.weight':
           'mlp.shared_expert_gate.weight', 'route.correction': 'mlp.gate.e_score_correction_bias'}  # fmt: skip


def _gain(which):
    return 'weight' if which == 'gain' else which


def _inside(kind, model, parts, name, tensor):
    """Their parts of one tensor of a layer."""
    owner, _, which = name.rpartition('.')
    if owner == 'qkv':
        queries = model.heads // model.key_value_heads
        q, k, v = tensor[:, :queries], tensor[:, queries], tensor[:, queries + 1]
        flat = [part.flatten(0, -2 if which == 'weight' else -1) for part in (q, k, v)]
        if kind == 'gpt2':
            yield f'{parts["qkv"]}.{which}', torch.cat(flat).mT if which == 'weight' else torch.cat(flat)
        elif kind == 'phi3':
            yield f'self_attn.qkv_proj.{which}', torch.cat(flat)
        else:
            yield from ((f'self_attn.{x}_proj.{which}', part) for x, part in zip('qkv', flat, strict=True))
    elif name in MIXTURE:
        yield MIXTURE[name], tensor
    elif name == 'experts.fc1.weight':
        # All gates of an expert, then all that they let through.
        yield 'mlp.experts.gate_up_proj', tensor.transpose(1, 2).flatten(1, 2)
    elif owner in ('shared.fc1', 'shared.fc2'):
        shared = 'mlp.shared_expert' if kind.startswith('qwen') else 'mlp.shared_experts'
        parts = {'gate_proj': tensor[:, 0], 'up_proj': tensor[:, 1]} if owner == 'shared.fc1' else {'down_proj': tensor}
        yield from ((f'{shared}.{part}.weight', value) for part, value in parts.items())
    elif owner == 'fc1' and kind == 'phi3':
        yield f'mlp.gate_up_proj.{which}', tensor.transpose(0, 1).flatten(0, 1)
    elif owner == 'fc1' and model.gated:
        yield f'mlp.gate_proj.{which}', tensor[:, 0]
        yield f'mlp.up_proj.{which}', tensor[:, 1]
    elif name in parts:
        yield parts[name], tensor
    else:
        matrix = tensor.flatten(1) if which == 'weight' and owner in ('proj', 'fc1', 'fc2') else tensor
        if owner in ('q_up', 'kv_up'):
            matrix = tensor.flatten(0, 1)
            owner = 'q' if owner == 'q_up' and not model.q_lora_rank else owner
        # Its products are [inputs, outputs].
        turned = kind == 'gpt2' and matrix.ndim == 2
        yield f'{parts[owner]}.{_gain(which)}', matrix.mT if turned else matrix
