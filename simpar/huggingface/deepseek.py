"""What the configs of DeepSeek V2 and V3 say in words of their own: latent attention, further tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import log, sqrt
from typing import Any, Final

from simpar.huggingface.family import Config, Refused, Says

LATENT: Final = {
    'kv_lora_rank': 'kv_lora_rank',
    'q_lora_rank': 'q_lora_rank',
    'qk_nope_head_dim': 'qk_nope_head_dim',
    'qk_rope_head_dim': 'qk_rope_head_dim',
    'v_head_dim': 'v_head_dim',
}
"""Keys that are ours, too."""
FURTHER: Final = ('num_nextn_predict_layers', 'num_mtp_layers')
NUMBERS: Final = ('beta_fast', 'beta_slow', 'mscale', 'mscale_all_dim', 'attention_factor')
"""Of YaRN, those that have defaults."""
# Sizes that follow from others, and how a checkpoint is stored.
READ: Final = ('head_dim', 'qk_head_dim', 'rope_interleave', *FURTHER)


@dataclass(frozen=True)
class Stored:
    """How a checkpoint is stored: equal to every ``quantization_config`` of this method.

    It is trained in ``workload.precision``, with ``workload.fp8`` where that is wanted.
    """

    method: str

    def __eq__(self, other: object) -> bool:
        """Whether it is of this method."""
        return isinstance(other, dict) and other.get('quant_method') == self.method

    def __hash__(self) -> int:
        """Of the method."""
        return hash(self.method)

    def __str__(self) -> str:
        """As a config has it."""
        return f'{{quant_method: {self.method}}}'


ONLY: Final = {'attention_dropout': (0, None), 'quantization_config': (None, Stored('fp8'))}


def rope(config: Config) -> tuple[str, Mapping[str, Any]]:
    """What is said of rotary in one mapping, and the key that says it: as transformers 5, the older one goes before."""
    by = 'rope_scaling' if config['rope_scaling'] else 'rope_parameters'
    told = config[by] or {}
    if not isinstance(told, dict):
        raise Refused(by, 'not a mapping', 'write null, or a mapping with rope_type', 'rope_scaling')
    apart = [key for key, value in told.items() if isinstance(value, dict)]
    if apart:
        what = f'not yet: rotary unlike in layers of a kind ({", ".join(map(str, apart))[:60]})'
        raise Refused(by, what, 'write one mapping for all layers', 'rope_scaling')
    return by, told


def magnitude(factor: float, times: float = 1.0) -> float:
    """What YaRN multiplies by, from how far positions are stretched (Peng et al. 2023, section 3.4)."""
    return 0.1 * times * log(factor) + 1 if factor > 1 else 1.0


def yarn(scaling: dict[str, Any], by: str) -> list[float]:
    """[factor, original, fast, slow, magnitude] of a mapping of a config's key ``by``; raises ``Refused``."""
    wrong = [key for key in NUMBERS if not isinstance(scaling.get(key), int | float | None)]
    if wrong:
        raise Refused(by, f'yarn without a number for {", ".join(wrong)}', 'write one', 'rope_scaling')
    if scaling.get('truncate') is False:
        raise Refused(by, 'not modelled: yarn without truncate', 'leave truncate out', 'rope_scaling')
    factor, times, all_dims = scaling['factor'], scaling.get('mscale'), scaling.get('mscale_all_dim')
    size = scaling.get('attention_factor')
    if size is None:
        size = magnitude(factor, times) / magnitude(factor, all_dims) if times and all_dims else magnitude(factor)
    turns = scaling.get('beta_fast') or 32, scaling.get('beta_slow') or 1
    return [float(one) for one in (factor, scaling['original_max_position_embeddings'], *turns, size)]


def scores(config: Config) -> Iterator[Says]:
    """With YaRN scores are multiplied by its magnitude, once for queries and once for keys."""
    by, scaling = rope(config)
    if scaling.get('rope_type', scaling.get('type', 'default')) == 'default':
        return
    times, factor = scaling.get('mscale_all_dim'), scaling.get('factor')
    features = (config['qk_nope_head_dim'], config['qk_rope_head_dim'])
    # What is no number is told where it is read.
    if not isinstance(times, int | float) or not isinstance(factor, int | float):
        return
    if times and all(isinstance(one, int) and one > 0 for one in features):
        yield Says('attention_scale', magnitude(factor, times) ** 2 / sqrt(sum(features)), by)


def interleaved(config: Config) -> Iterator[Says]:
    """Pairs of neighbours, unless it says otherwise."""
    if not isinstance(config['rope_interleave'], bool):
        raise Refused('rope_interleave', 'not true or false', 'write true or false', 'rope_interleaved')
    yield Says('rope_interleaved', config['rope_interleave'], 'rope_interleave')


def further(config: Config) -> Iterator[Says]:
    """Modules that predict further tokens are no part of the model that transformers counts."""
    for key in FURTHER:
        if config[key]:
            what = f'not yet: multi-token prediction (got {str(config[key])[:20]})'
            raise Refused(key, what, 'write mtp_layers: 0 beside model to train without it', 'mtp_layers')
    yield from ()
