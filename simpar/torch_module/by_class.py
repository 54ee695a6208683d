"""Modules that are exported in another form of the same mathematics, by their class."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@contextmanager
def batch_first(module: torch.nn.Module) -> Iterator[None]:
    """Within it every ``nn.MultiheadAttention`` of a module keeps samples in dim 0.

    torch's own turns samples and tokens around and joins samples with heads, so that neither could be split over ranks.
    """
    import torch

    attentions = [one for one in module.modules() if type(one) is torch.nn.MultiheadAttention]
    enabled = torch.backends.mha.get_fastpath_enabled()
    # The fast path is one fused operator without a derivative.
    torch.backends.mha.set_fastpath_enabled(False)
    for one in attentions:
        one.forward = _attention.__get__(one)
    try:
        yield
    finally:
        for one in attentions:
            del one.forward
        torch.backends.mha.set_fastpath_enabled(enabled)


def _attention(
    self: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    key_padding_mask: torch.Tensor | None = None,
    need_weights: bool = True,
    attn_mask: torch.Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[torch.Tensor, None]:
    """The same as ``nn.MultiheadAttention.forward`` with ``need_weights=False``."""
    from torch.nn import functional

    del need_weights, average_attn_weights
    if not self.batch_first:
        raise ValueError('nn.MultiheadAttention has samples in dim 1; make it with batch_first=True')
    if self.bias_k is not None or self.add_zero_attn:
        raise ValueError('nn.MultiheadAttention with add_bias_kv or add_zero_attn is not supported')
    if self.in_proj_weight is None:
        weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
    else:
        weights = self.in_proj_weight.chunk(3)
    biases = self.in_proj_bias.chunk(3) if self.in_proj_bias is not None else (None, None, None)
    query, key, value = (
        functional.linear(x, weight, bias).unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)
        for x, weight, bias in zip((query, key, value), weights, biases, strict=True)
    )
    mask = _mask(attn_mask, key_padding_mask, query.dtype)
    causal = is_causal and mask is None
    y = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=self.dropout if self.training else 0.0, is_causal=causal
    )
    return self.out_proj(y.transpose(1, 2).flatten(-2)), None


def _mask(attention: torch.Tensor | None, padding: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """Both masks as one that is added to scores."""
    import torch

    if attention is not None and attention.dtype == torch.bool:
        attention = torch.zeros_like(attention, dtype=dtype).masked_fill(attention, -torch.inf)
    if padding is not None:
        if padding.dtype == torch.bool:
            padding = torch.zeros_like(padding, dtype=dtype).masked_fill(padding, -torch.inf)
        padding = padding[:, None, None, :]
        attention = padding if attention is None else attention + padding
    return attention
