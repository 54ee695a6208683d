"""A family of models: what its configs say by which key, what all its models have, and what is not modelled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple


class Says(NamedTuple):
    """A key of a ``transformer:``, its value, and the key of the config that says so; empty: all models do."""

    key: str
    value: Any
    by: str = ''


class Refused(Exception):
    """What of a config is not modelled.

    Arguments: ``key`` of the config; ``what`` is wrong; ``instead``, what to write; ``of``, the key of a
    ``transformer`` that it would say: where that stands beside ``model``, nothing is refused.
    """

    def __init__(self, key: str, what: str, instead: str, of: str) -> None:
        super().__init__(key, what, instead, of)
        self.key, self.what, self.instead, self.of = key, what, instead, of


@dataclass(frozen=True, slots=True)
class Config:
    """A config's values, with its family's defaults for those that are missing."""

    values: Mapping[str, Any]
    defaults: Mapping[str, Any]

    def __getitem__(self, key: str) -> Any:
        """The value of a key; None where neither the file nor the family has one."""
        return self.values.get(key, self.defaults.get(key))


Rule = Callable[[Config], Iterator[Says]]
"""What follows from several keys, or from one that says it in other words; raises ``Refused``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Configs of one ``model_type``.

    Arguments:
        copied: keys whose value a key of ``transformer:`` takes as it is; null leaves that at its default.
        needed: of these, those that have no default.
        always: keys of ``transformer:`` that all models have.
        defaults: of keys that a file may leave out, as transformers has them.
        only: keys that change the model, and the values of them that are modelled.
        rules: of all other keys that are read.
        reads: those keys.
    """

    copied: Mapping[str, str]
    needed: tuple[str, ...]
    always: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    reads: tuple[str, ...] = ()

    @property
    def known(self) -> frozenset[str]:
        """Every key that it looks at."""
        return frozenset((*self.copied, *self.only, *self.reads))


WITHOUT_EFFECT: Final[Mapping[str, str]] = {
    'what the file is': 'model_type architectures auto_map transformers_version transformers.js_config _name_or_path '
    '_commit_hash name_or_path model_name license',
    'tokens with a meaning, and texts': 'bos_token_id eos_token_id pad_token_id sep_token_id cls_token_id '
    'decoder_start_token_id forced_bos_token_id forced_eos_token_id unk_token_id tokenizer_class prefix '
    'suppress_tokens begin_suppress_tokens bad_words_ids task_specific_params id2label label2id problem_type '
    'num_labels',
    'how text is generated': 'use_cache cache_implementation do_sample temperature top_k top_p typical_p max_length '
    'min_length num_beams num_beam_groups diversity_penalty early_stopping repetition_penalty length_penalty '
    'no_repeat_ngram_size encoder_no_repeat_ngram_size num_return_sequences remove_invalid_values '
    'exponential_decay_length_penalty output_scores return_dict_in_generate',
    'what a call returns': 'return_dict output_attentions output_hidden_states use_return_dict torchscript '
    'return_token_timestamps',
    'the precision of the checkpoint, which is workload.precision here': 'torch_dtype dtype',
    'how attention is computed, which is attention here': 'attn_implementation _attn_implementation '
    '_attn_implementation_autoset use_flash_attention_2 _flash_attn_2_enabled reorder_and_upcast_attn',
    'the same sums in another order': 'pretraining_tp chunk_size_feed_forward tie_encoder_decoder '
    'gradient_checkpointing',
    'the longest sequence, which is sequence here; rotary of some kinds reads it': 'max_position_embeddings '
    'original_max_position_embeddings n_ctx',
    'an auxiliary loss that transformers does not add: write experts: {aux_loss: ...} beside model': 'aux_loss_alpha '
    'seq_aux',
    'how experts are shared out, which is plan.expert here': 'ep_size',
    'heads of other tasks': 'summary_type summary_use_proj summary_activation summary_proj_to_labels '
    'summary_first_dropout classifier_dropout is_decoder finetuning_task cross_attention_hidden_size',
}
"""Keys that change nothing of a training step, by why."""
IGNORED: Final = frozenset(' '.join(WITHOUT_EFFECT.values()).split())
ONLY: Final[Mapping[str, tuple[Any, ...]]] = {
    'quantization_config': (None,),
    'is_encoder_decoder': (False, None),
    'add_cross_attention': (False, None),
    'pruned_heads': ({}, None),
}
"""Keys of any config that change the model, and the values of them that are modelled."""
NOT_YET: Final[Mapping[str, str]] = {
    'a mixture of experts that is not read': 'olmoe dbrx granitemoe phimoe jetmoe gpt_oss llama4 '
    'llama4_text qwen3_next glm4_moe minimax ernie4_5_moe hunyuan_v1_moe',
    'latent attention by another name': 'kimi_k2 deepseek_v32',
    'two bases of rotary, one for windows': 'gemma3 gemma3_text gemma3n',
    'two norms of a parallel layer': 'gpt_neox falcon',
    'a norm of all queries behind their product': 'olmo2 olmo3',
    'pairs of neighbours in rotary': 'gptj codegen cohere cohere2 glm glm4 chatglm',
    'a position bias': 'bloom mpt',
    'a state space or a recurrence': 'mamba mamba2 jamba bamba zamba zamba2 falcon_mamba recurrent_gemma rwkv',
}
"""Known values of ``model_type`` that cannot be read yet, by what they have."""
