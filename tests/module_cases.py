"""Modules that this project did not write, tiny, with example inputs; and their own autograd beside our machines."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from huggingface_cases import Unnarrowed
from torch import nn
from torch.nn import functional

from executor.draws import batch_of, keep
from executor.inprocess import InProcess
from simpar import Plan, Workload, from_module
from simpar.lower import lower
from simpar.torch_module.graph import module_tensors

BATCH = 16
LOSSES = {
    'mse': functional.mse_loss,
    'cross-entropy': lambda y, target: functional.cross_entropy(y.flatten(0, -2), target.flatten()),
}


@dataclass(frozen=True)
class ModuleCase:
    """A module with example inputs and the loss that is put on its output."""

    module: nn.Module
    inputs: object
    loss: str = 'mse'
    output: str = ''


def _of(config: object, kind: str, **more: object) -> nn.Module:
    import transformers

    # What a config says in fp32 is made wide, so that a model in fp64 is one.
    with Unnarrowed(torch.float64):
        torch.set_default_dtype(torch.float64)
        try:
            return getattr(transformers, kind)(config, **more).double()
        finally:
            torch.set_default_dtype(torch.float32)


def _config(kind: str, **told: object) -> object:
    import transformers

    return getattr(transformers, kind)(**told)


def tokens(count: int = 24, length: int = 8) -> torch.Tensor:
    """Example tokens."""
    return torch.randint(count, (4, length))


def encoder() -> ModuleCase:
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    return ModuleCase(nn.TransformerEncoder(layer, 2).double(), torch.randn(4, 8, 16).double())


def decoder() -> ModuleCase:
    layer = nn.TransformerDecoderLayer(16, 4, 32, dropout=0.0, batch_first=True, norm_first=True)
    mask = nn.Transformer.generate_square_subsequent_mask(8).double()
    inputs = {
        'tgt': torch.randn(4, 8, 16).double(),
        'memory': torch.randn(4, 6, 16).double(),
        'tgt_mask': mask,
        'tgt_is_causal': True,
    }
    return ModuleCase(nn.TransformerDecoder(layer, 2).double(), inputs)


def gpt2() -> ModuleCase:
    config = _config('GPT2Config', n_layer=2, n_embd=16, n_head=4, vocab_size=24, n_positions=12, resid_pdrop=0.0,
                     embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, initializer_range=0.2)  # fmt: skip
    return ModuleCase(_of(config, 'GPT2LMHeadModel'), tokens(), 'cross-entropy')


def llama() -> ModuleCase:
    config = _config('LlamaConfig', num_hidden_layers=2, hidden_size=16, intermediate_size=32, num_attention_heads=4,
                     num_key_value_heads=2, vocab_size=24, initializer_range=0.2)  # fmt: skip
    return ModuleCase(_of(config, 'LlamaForCausalLM'), tokens(), 'cross-entropy')


def bert() -> ModuleCase:
    config = _config('BertConfig', hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32,
                     vocab_size=24, max_position_embeddings=12, hidden_dropout_prob=0.0,
                     attention_probs_dropout_prob=0.0, initializer_range=0.2)  # fmt: skip
    inputs = {'input_ids': tokens(), 'attention_mask': torch.ones(4, 8, dtype=torch.int64)}
    return ModuleCase(_of(config, 'BertForMaskedLM'), inputs, 'cross-entropy')


def vit() -> ModuleCase:
    config = _config('ViTConfig', hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32,
                     image_size=8, patch_size=4, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)  # fmt: skip
    return ModuleCase(_of(config, 'ViTForImageClassification'), torch.randn(4, 3, 8, 8).double(), 'mse')


def resnet() -> ModuleCase:
    config = _config('ResNetConfig', embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type='basic',
                     num_labels=4)  # fmt: skip
    return ModuleCase(_of(config, 'ResNetForImageClassification').eval(), torch.randn(4, 3, 16, 16).double())


def t5() -> ModuleCase:
    config = _config('T5Config', d_model=16, d_kv=4, d_ff=32, num_layers=2, num_heads=4, vocab_size=24,
                     dropout_rate=0.0, use_cache=False)  # fmt: skip
    return ModuleCase(_of(config, 'T5EncoderModel'), tokens())


def clip() -> ModuleCase:
    config = _config('CLIPVisionConfig', hidden_size=16, num_hidden_layers=2, num_attention_heads=4,
                     intermediate_size=32, image_size=8, patch_size=4, projection_dim=8)  # fmt: skip
    return ModuleCase(
        _of(config, 'CLIPVisionModelWithProjection'), torch.randn(4, 3, 8, 8).double(), output='image_embeds'
    )


def cvt() -> ModuleCase:
    config = _config('CvtConfig', num_channels=3, patch_sizes=[3, 3], patch_stride=[2, 2], patch_padding=[1, 1],
                     embed_dim=[8, 16], num_heads=[2, 4], depth=[1, 2], mlp_ratio=[2.0, 2.0],
                     attention_drop_rate=[0.0, 0.0], drop_rate=[0.0, 0.0], drop_path_rate=[0.0, 0.0],
                     qkv_bias=[True, True], cls_token=[False, True], qkv_projection_method=['dw_bn', 'dw_bn'],
                     kernel_qkv=[3, 3], padding_kv=[1, 1], stride_kv=[2, 2], padding_q=[1, 1], stride_q=[1, 1],
                     num_labels=4)  # fmt: skip
    return ModuleCase(_of(config, 'CvtForImageClassification').eval(), torch.randn(4, 3, 16, 16).double())


MODULES: dict[str, Callable[[], ModuleCase]] = {
    'nn.TransformerEncoder': encoder,
    'nn.TransformerDecoder': decoder,
    'GPT-2': gpt2,
    'Llama': llama,
    'BERT': bert,
    'ViT': vit,
    'ResNet': resnet,
    'T5 encoder': t5,
    'CLIP vision': clip,
    'CvT (einsum)': cvt,
}
PLANS = {
    'one': (Plan(), 1),
    'data 2, copies 2, zero 2': (Plan(data=2, copies=2, zero=2), 2),
    'tensor 2, recompute full': (Plan(tensor=2, recompute='full'), 2),
    'pipeline 2, micro 4': (Plan(pipeline=2, micro_batches=4), 2),
    'tensor 2, pipeline 2, copies 2': (Plan(tensor=2, pipeline=2, micro_batches=2, copies=2), 4),
    'data 2, tensor 2, pipeline 2, zero 3': (Plan(data=2, tensor=2, pipeline=2, micro_batches=2, zero=3), 8),
}
"""Plan and ranks."""


def exported(case: ModuleCase):
    """What ``from_module`` makes of it."""
    with Unnarrowed(torch.float64):
        return from_module(case.module, case.inputs, output=case.output)


def own_autograd(case: ModuleCase, model, seed: int = 0):
    """The module's own loss and gradients, of the inputs that machines draw."""
    graph = model.graph(BATCH)
    drawn = {one.name: batch_of(one.name, one.drawn, one.shape, torch.int64 if one.integer else torch.float64, seed, 0)
             for one in graph.sources}  # fmt: skip
    shape = graph.shapes[graph.nodes[-1].name]
    by_class = case.loss == 'cross-entropy'
    target = (batch_of('labels', f'classes:{shape[-1]}', shape[:-1], torch.int64, seed, 0) if by_class
              else batch_of('target', 'normal:1', shape, torch.float64, seed, 0))  # fmt: skip
    case.module.zero_grad()
    with Unnarrowed(torch.float64):
        y = case.module(**{**case.inputs, **drawn}) if isinstance(case.inputs, dict) else case.module(*drawn.values())
    if not isinstance(y, torch.Tensor):
        y = y[case.output or next(name for name in ('logits', 'last_hidden_state') if name in y)]
    loss = LOSSES[case.loss](y, target)
    loss.backward()
    return loss.detach(), {name: one.grad for name, one in case.module.named_parameters() if one.grad is not None}


def deviation(case: ModuleCase, found, plan: Plan, ranks: int, seed: int = 0) -> float:
    """The largest deviation of loss and gradients from the module's own, as a share of the largest gradient's norm."""
    program = lower(Workload(model=found.model, batch=BATCH, loss=case.loss), plan, ranks)
    with pytest.MonkeyPatch.context() as patch:
        # Programs that follow find no tensors of this module.
        patch.setenv('SIMPAR_GIVEN', '')
        patch.setenv('SIMPAR_OWN_OPS', '')
        keep(found.weights, found.own)
        result = InProcess(program, seed).run(1)
    loss, wanted = own_autograd(case, found.model, seed)
    gradients = module_tensors({name.removeprefix('d:'): of for name, of in result.gradients.items()})
    assert set(gradients) == set(wanted), set(gradients) ^ set(wanted)
    floor = 1e-3 * max(float(one.norm()) for one in wanted.values())
    worst = max(float((gradients[name] - one).norm()) / max(floor, float(one.norm())) for name, one in wanted.items())
    return max(worst, abs(float(loss) - result.losses[0]) / abs(float(loss)))
