"""Runs torch.export on a module, for two counts of samples, so that it is known which dims count samples."""

from __future__ import annotations

import io
import logging
import sysconfig
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simpar.errors import refusal

if TYPE_CHECKING:
    import torch

COUNTS = (3, 5)
"""Samples of the two exports."""


@dataclass(frozen=True, slots=True, eq=False)
class Traced:
    """One export: the program, and by the name of a node the shape of its value."""

    program: Any
    nodes: tuple[Any, ...]


def traced(module: torch.nn.Module, inputs: Sequence[Any], named: Mapping[str, Any], samples: int) -> Traced:
    """Export a module for so many samples; raises ``ScheduleError`` with what torch says where it cannot be."""
    import torch

    # The first input tells how many samples the examples have; what has another dim 0 has no samples.
    batch = next((one.shape[0] for one in (*inputs, *named.values()) if getattr(one, 'ndim', 0)), 0)
    arguments = tuple(_of(one, batch, samples) for one in inputs)
    keywords = {name: _of(one, batch, samples) for name, one in named.items()}
    try:
        quiet = io.StringIO()
        with warnings.catch_warnings(), redirect_stdout(quiet), redirect_stderr(quiet), _silent(), _uncached(module):
            # What torch tells of its own internals; what is wrong with the module is an exception.
            warnings.simplefilter('ignore')
            program = torch.export.export(module, arguments, keywords, strict=False)
            # No operator is decomposed, but changes in place become values.
            program = program.run_decompositions({})
    except Exception as error:
        # Whatever a module's own code raises is the user's; torch's reasons begin with a line that says them.
        said = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        what = f'torch.export cannot follow it: {type(error).__name__}: {said}'
        instead = 'pass example inputs that the module takes'
        if 'data-dependent' in said:
            what = 'what is computed depends on values, as in loops over the tokens of an expert'
            instead = (
                'compute all, and choose with where or a product; mixtures of experts: write a transformer with experts'
            )
        raise refusal(_place(error) or type(module).__name__, what, instead) from None
    return Traced(program, tuple(program.graph.nodes))


def _place(error: BaseException) -> str:
    """file:line of the module's own code that torch was in; empty where it was in none."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith('<')]
    # Before torch it is the caller's code, not the module's.
    first = next((place for place, frame in enumerate(frames) if '/torch/' in frame.filename), len(frames))
    own = [frame for frame in frames[first:] if '/torch/' not in frame.filename and not _of_python(frame.filename)]
    return f'{own[-1].filename}:{own[-1].lineno}' if own else ''


def _of_python(path: str) -> bool:
    """Whether a file is of Python itself, which calls on torch's behalf."""
    return path.startswith(sysconfig.get_path('stdlib')) and 'site-packages' not in path


@contextmanager
def _silent() -> Iterator[None]:
    """Within it no logger says anything."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


@contextmanager
def _uncached(module: torch.nn.Module) -> Iterator[None]:
    """Within it models of transformers return no keys and values of earlier tokens, which a training has no use for."""
    configs: dict[int, Any] = {}
    for one in module.modules():
        config = getattr(one, 'config', None)
        if config is not None and getattr(config, 'use_cache', None) is True:
            configs[id(config)] = config
    for config in configs.values():
        config.use_cache = False
    try:
        yield
    finally:
        for config in configs.values():
            config.use_cache = True


def _of(value: Any, batch: int, samples: int) -> Any:
    """An example input with so many samples in the place of a batch."""
    import torch

    if isinstance(value, torch.Tensor) and value.ndim and value.shape[0] == batch:
        return value[:1].expand(samples, *value.shape[1:]).clone()
    return value


# modules that are exported in another form of the same mathematics


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
