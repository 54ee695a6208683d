"""Terms: what to say of an unknown key or value that is a word of the field, or one of ours in the wrong place."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Final, NamedTuple

from simpar.document import Key
from simpar.plan import Plan
from simpar.workload import Transformer, Workload

TRANSFORMER: Final = 'workload.transformer.'
EXPERTS: Final = f'{TRANSFORMER}experts.'
KEYS: Final[Mapping[str, str]] = {
    'plan.tensor': 'tp tp_size tensor_parallel tensor_parallelism tensor_parallel_size tensor_parallel_degree mp '
    'tensor_model_parallel tensor_model_parallel_size model_parallel model_parallel_size ici_tensor_parallelism',
    'plan.data': 'dp dp_size data_parallel data_parallelism data_parallel_size data_parallel_degree num_replicas '
    'replicas ici_data_parallelism dcn_data_parallelism data_parallel_replicate_degree',
    'plan.pipeline': 'pp pp_size pipeline_parallel pipeline_parallelism pipeline_parallel_size pipeline_stages '
    'pipeline_parallel_degree pipeline_model_parallel pipeline_model_parallel_size num_stages '
    'ici_pipeline_parallelism dcn_pipeline_parallelism',
    'plan.context': 'cp cp_size context_parallel context_parallelism context_parallel_size context_parallel_degree '
    'ici_context_parallelism sequence_parallel_size sequence_parallel_degree ds_sequence_parallel_size '
    'ici_sequence_parallelism',
    'plan.context, and context_kind: ring': 'ring_attention ring ring_degree',
    'plan.context, and context_kind: all_to_all': 'ulysses ulysses_sp ulysses_degree',
    'plan.context_kind': 'cp_comm_type context_parallel_algo context_parallel_rotate_method',
    'plan.context_split': 'context_parallel_load_balance context_parallel_load_balancer zigzag head_tail',
    'plan.chunks': 'virtual_pipeline virtual_pipeline_parallel vpp vpp_size virtual_pp virtual_stages interleave '
    'virtual_pipeline_model_parallel_size virtual_pipeline_parallel_size num_virtual_stages model_chunks '
    'pp_interleave_num num_virtual_stages_per_pipeline_rank num_model_chunks',
    'plan.sequence_chunks': 'seq_split_num seq1f1b num_seq_splits pipe_sp_splits seq_split sequence_split',
    'plan.sequence_parallel': 'sp sequence_parallelism use_sequence_parallel enable_sequence_parallel use_seq_parallel '
    'megatron_sp sequence_parallel_enabled',
    'plan.micro_batches': 'gradient_accumulation_steps gradient_accumulation accumulate_grad_batches grad_accum '
    'accumulation_steps accumulate_steps grad_accumulation_steps num_microbatches num_micro_batches micro_batch_num '
    'microbatches n_microbatches num_pipeline_microbatches micro_batches_num pipeline_parallel_microbatches',
    'plan.copies': 'micro_batch_interleaved micro_batch_interleave_num multi_copy num_copies multi_copies',
    'plan.order': 'pipeline_schedule pipeline_parallel_schedule pp_schedule pipeline_scheduler pipeline_order schedule',
    'plan.stages': 'pipeline_split pipeline_split_points pipeline_layers decoder_first_pipeline_num_layers '
    'decoder_last_pipeline_num_layers pipeline_model_parallel_layout offset',
    'plan.recompute: full, or selective': 'activation_checkpointing activation_checkpoint gradient_checkpointing remat '
    'recompute_granularity recompute_activations checkpoint_activations remat_policy full_recompute select_recompute '
    'selective_recompute activation_recomputation recomputation recompute_modules selective_ac_option',
    'plan.zero: 3': 'fsdp fsdp2 fully_shard fully_sharded full_shard zero3 zero_3 ici_fsdp_parallelism fsdp_size '
    'use_fsdp data_parallel_shard_degree torch_fsdp2 use_torch_fsdp2 use_megatron_fsdp',
    'plan.zero: 2': 'zero2 zero_2 shard_grad_op',
    'plan.zero: 1': 'distributed_optimizer use_distributed_optimizer zero1 zero_1 shard_optimizer_state '
    'zero_redundancy_optimizer optimizer_state_sharding',
    'plan.zero': 'zero_stage zero_optimization zero_optimization_stage zero_level deepspeed_stage',
    'plan.hsdp': 'enable_parallel_optimizer parallel_optimizer optimizer_parallel optimizer_level '
    'optimizer_weight_shard parallel_optimizer_config',
    'plan.shard_group': 'optimizer_weight_shard_size hybrid_shard_size hpz_partition_size zero_hpz_partition_size '
    'mics_shard_size num_distributed_optimizer_instances',
    'plan.shard_threshold': 'parallel_optimizer_threshold param_persistence_threshold min_num_params '
    'stage3_param_persistence_threshold',
    'plan.reduce_gradients': 'overlap_grad_reduce overlap_comm overlap_reduce delay_grad_reduce ddp_overlap',
    'plan.prefetch': 'overlap_param_gather forward_prefetch backward_prefetch prefetch_factor prefetch_distance '
    'stage3_prefetch_bucket_size limit_all_gathers',
    'plan.fusion': 'bucket_size bucket_cap_mb ddp_bucket_size reduce_bucket_size allgather_bucket_size '
    'all_reduce_fusion_config comm_fusion allreduce_bucket_size bucket_size_mb gradient_fusion',
    'plan.tiles': 'tp_comm_overlap async_tp coc mc2 interleaved_matmul_comm async_tensor_parallel use_ascend_coc',
    'plan.all_to_all': 'enable_alltoall enable_all2all alltoall all2all',
    'plan.dataset': 'dataset_strategy full_batch',
    'plan.device_matrix': 'device_mesh mesh mesh_shape device_arrangement',
    'plan.search': 'search_mode auto_parallel_search_mode strategy_search_mode parallel_mode auto_parallel',
    'workload.batch': 'global_batch_size batch_size train_batch_size gbs global_batch',
    'workload.batch, that times data, micro_batches and copies': 'micro_batch_size microbatch_size mbs '
    'local_batch_size train_micro_batch_size_per_gpu per_device_batch_size per_device_train_batch_size '
    'batch_size_per_gpu '
    'micro_batch_size_per_gpu',
    f'{TRANSFORMER}layers': 'num_layers n_layer n_layers num_hidden_layers base_num_decoder_layers depth num_blocks '
    'number_of_layers',
    f'{TRANSFORMER}hidden': 'hidden_size d_model n_embd embed_dim embedding_dim base_emb_dim model_dim emb_dim '
    'hidden_dim',
    f'{TRANSFORMER}heads': 'num_attention_heads num_heads n_head n_heads attention_heads base_num_query_heads '
    'num_query_heads',
    f'{TRANSFORMER}sequence': 'seq_length seq_len sequence_length max_position_embeddings max_seq_len n_ctx '
    'max_sequence_length max_target_length context_length encoder_seq_length max_seq_length',
    f'{TRANSFORMER}vocab': 'vocab_size padded_vocab_size vocabulary vocabulary_size n_vocab',
    f'{TRANSFORMER}ffn': 'ffn_hidden_size intermediate_size d_ff mlp_dim base_mlp_dim ffn_dim n_inner mlp_hidden_size '
    'feed_forward feedforward ffn_size',
    f'{TRANSFORMER}kv_heads': 'num_query_groups num_key_value_heads n_kv_heads num_kv_heads base_num_kv_heads gqa '
    'group_query_attention n_kv_head kv_groups',
    f'{TRANSFORMER}tied': 'tie_word_embeddings tie_embeddings share_embeddings_and_output_weights tie_weights '
    'share_embeddings logits_via_embedding untie_embeddings_and_output_weights',
    f'{TRANSFORMER}attention: flash': 'flash_attention use_flash_attn use_flash_attention flash_attn sdpa '
    'attn_implementation attention_backend attention_implementation',
    f'{TRANSFORMER}dropout': 'hidden_dropout attention_dropout dropout_rate dropout_prob resid_pdrop attn_pdrop '
    'embd_pdrop',
    f'{TRANSFORMER}position: rotary': 'rotary rope use_rope rotary_position_embeddings position_embedding_type '
    'use_rotary_position_embeddings',
    f'{TRANSFORMER}rope_theta': 'rotary_base rope_base',
    f'{TRANSFORMER}rotary_share': 'rotary_percent rotary_pct rotary_dim partial_rotary_factor',
    f'{TRANSFORMER}rope_scaling: [8]': 'rotary_seq_len_interpolation_factor rope_scaling_factor',
    f'{TRANSFORMER}longrope': 'short_factor long_factor rope_factors',
    f'{TRANSFORMER}window': 'sliding_window sliding_window_size window_size window_attn attention_window '
    'local_attention sliding_window_attention',
    f'{TRANSFORMER}documents': 'packing sequence_packing packed_sequence packed_documents thd reset_attention_mask '
    'reset_position_ids document_lengths cu_seqlens',
    f'{TRANSFORMER}activation: swiglu': 'swiglu gated_linear_unit gated_mlp',
    f'{TRANSFORMER}activation: geglu': 'geglu',
    f'{TRANSFORMER}activation': 'hidden_act hidden_activation activation_function mlp_activations',
    f'{TRANSFORMER}norm: rms_norm': 'rmsnorm use_rmsnorm',
    f'{TRANSFORMER}norm': 'normalization norm_type',
    f'{TRANSFORMER}norm_epsilon': 'layernorm_epsilon rms_norm_eps layer_norm_eps layer_norm_epsilon',
    f'{TRANSFORMER}qk_norm': 'qk_layernorm use_qk_norm',
    f'{TRANSFORMER}kv_lora_rank': 'mla multi_latent_attention kv_rank latent_dim',
    f'{TRANSFORMER}q_lora_rank': 'q_rank',
    f'{TRANSFORMER}qk_rope_head_dim': 'qk_pos_emb_head_dim rope_head_dim',
    f'{TRANSFORMER}qk_nope_head_dim': 'qk_head_dim nope_head_dim',
    f'{TRANSFORMER}rope_interleaved': 'rotary_interleaved rope_interleave',
    f'{TRANSFORMER}mtp_layers': 'mtp mtp_num_layers multi_token_prediction num_nextn_predict_layers',
    f'{TRANSFORMER}post_norms': 'post_norm',
    f'{TRANSFORMER}bias: []': 'disable_bias_linear',
    f'{TRANSFORMER}bias: [qkv]': 'add_qkv_bias',
    f'{TRANSFORMER}bias': 'add_bias_linear use_bias attention_bias',
    f'{TRANSFORMER}head_dim': 'kv_channels head_size',
    f'{TRANSFORMER}pad_vocab': 'make_vocab_size_divisible_by pad_vocab_size_to_multiple_of',
    f'{TRANSFORMER}parallel': 'parallel_attn parallel_residual use_parallel_residual parallel_block',
    f'{TRANSFORMER}attention_softcap': 'attn_logit_softcapping',
    f'{TRANSFORMER}logit_softcap': 'final_logit_softcapping',
    f'{EXPERTS}count': 'num_experts expert_num n_experts n_routed_experts num_local_experts',
    f'{EXPERTS}top_k': 'moe_router_topk router_topk num_experts_per_tok experts_per_token num_experts_chosen',
    f'{EXPERTS}ffn': 'moe_ffn_hidden_size moe_intermediate_size',
    f'{EXPERTS}every': 'moe_layer_freq decoder_sparse_step',
    f'{EXPERTS}first_dense': 'first_k_dense_replace',
    f'{EXPERTS}shared': 'num_shared_experts n_shared_experts moe_shared_expert_intermediate_size '
    'shared_expert_intermediate_size shared_expert_num',
    f'{EXPERTS}score': 'moe_router_score_function scoring_func router_score_function',
    f'{EXPERTS}normalise': 'norm_topk_prob moe_router_pre_softmax',
    f'{EXPERTS}scaling_factor': 'moe_router_topk_scaling_factor routed_scaling_factor',
    f'{EXPERTS}groups': 'moe_router_num_groups n_group',
    f'{EXPERTS}group_top_k': 'moe_router_group_topk topk_group',
    f'{EXPERTS}correction_bias': 'moe_router_enable_expert_bias',
    f'{EXPERTS}capacity': 'capacity_factor moe_capacity_factor moe_expert_capacity_factor',
    f'{EXPERTS}aux_loss': 'moe_aux_loss_coeff router_aux_loss_coef aux_loss_alpha load_balance_coeff',
    f'{TRANSFORMER}experts': 'moe mixture_of_experts router',
    'plan.expert': 'ep ep_size expert_parallel expert_parallelism expert_parallel_size expert_parallel_degree '
    'expert_model_parallel_size ici_expert_parallelism',
    f'{TRANSFORMER}init_std': 'init_method_std initializer_range initial_deviation',
    'workload.optimizer.adam.learning_rate': 'lr step_size',
    'workload.optimizer.adam.beta1': 'adam_beta1 betas b1',
    'workload.optimizer.adam.beta2': 'adam_beta2 b2',
    'workload.optimizer.adam.epsilon': 'eps adam_eps adam_epsilon',
    'workload.optimizer.adamw.weight_decay': 'wd decay',
    'workload.optimizer.adamw': 'adam_w fused_adam',
    'workload.optimizer.adam.master_weights': 'main_params master_params fp32_master_weights main_weights',
    'workload.clip_norm': 'clip_grad gradient_clipping max_grad_norm grad_clip clip_grad_norm gradient_clip_val '
    'grad_clip_norm',
    'workload.loss_scale': 'initial_loss_scale static_loss_scale loss_scaling loss_scale_value',
    'workload.fp8': 'fp8 fp8_format fp8_hybrid float8 e4m3 e5m2 enable_fp8',
    'workload.fp8_except': 'first_last_layers_bf16 filter_fqns',
    'workload.phase: forward': 'prefill forward_only eval evaluation inference_mode no_grad',
    'workload.precision': 'bf16 fp16 fp32 dtype params_dtype torch_dtype compute_dtype mixed_precision amp '
    'param_dtype data_type half bfloat16 float16',
    'workload.gradients': 'grad_reduce_in_fp32 accumulate_allreduce_grads_in_fp32 reduce_dtype grad_dtype main_grads '
    'main_grads_dtype gradient_dtype data_types_grad_accum_dtype',
    'cluster.nodes': 'nnodes num_nodes n_nodes servers',
    'cluster.devices': 'gpus_per_node devices_per_node nproc_per_node gpus num_gpus n_gpus world_size num_devices '
    'device_num ranks',
    'cluster': 'hardware machine system topology accelerator',
}
"""What to write, and the words that mean it."""
ABSENT: Final[Mapping[str, str]] = {
    'context parallelism of two kinds at once': 'usp a2a_p2p hybrid_cp_algo hierarchical_context_parallel_sizes',
    'a sequence striped token by token over context ranks': 'striped_attention',
    'tensor parallelism of experts that is not that of the rest': 'expert_tensor_parallel_size etp '
    'expert_tensor_parallel_degree',
    'a choice of how tokens travel to experts': 'moe_token_dispatcher_type moe_permute_fusion moe_grouped_gemm '
    'moe_enable_deepep use_deepep moe_flex_dispatcher_backend',
    'a loss on the size of logits of a router': 'moe_z_loss_coeff router_z_loss_coef z_loss',
    'noise in a router': 'moe_input_jitter_eps router_jitter_noise',
    'a position bias (ALiBi)': 'alibi use_alibi relative_position_bias',
    'sparse or linear attention': 'sparse_attention linear_attention block_sparse mamba ssm state_space',
    'smaller numbers than fp8, and fp8 by blocks': 'fp8_recipe mxfp8 fp4 nvfp4 int8 int4 nf4 quantize '
    'quantization quant load_in_8bit load_in_4bit hif8',
    'TF32 as a precision': 'tf32 allow_tf32',
    'offloading to host memory or disk': 'offload cpu_offload offload_optimizer offload_param optimizer_cpu_offload '
    'optimizer_offload activation_offload activation_offloading offload_activations zero_offload zero_infinity '
    'nvme_offload swap_optimizer parameter_offload gradient_offload cpu_offloading',
    'quantised communication': 'zero_quantized_weights zero_quantized_gradients zeropp zero_plus_plus qwz qgz '
    'gradient_compression powersgd onebit_adam compressed_allreduce',
    'low-rank adapters': 'lora lora_rank lora_alpha peft qlora adapter',
    'a schedule of the learning rate': 'lr_scheduler lr_schedule warmup warmup_steps lr_warmup lr_decay_style lr_decay '
    'lr_decay_iters cosine_decay min_lr lr_warmup_iters',
    'a dynamic loss scale': 'dynamic_loss_scale loss_scale_window hysteresis min_loss_scale loss_scaler',
    'this optimizer': 'lion lamb lars adafactor shampoo soap sophia adagrad rmsprop galore adam8bit ema',
    'loading of data and checkpoints': 'num_workers dataloader data_loader save_interval checkpoint_interval '
    'async_save checkpointing save_steps',
    'local or asynchronous updates': 'local_sgd diloco async_sgd hogwild federated',
    'tensor parallelism in 2, 2.5 or 3 dimensions': 'tp_2d tp_x tp_y tensor_2d tensor_25d tensor_3d '
    'tensor_parallel_2d ndtp',
    'samples of unlike lengths': 'variable_seq_lengths variable_length',
    'encoders and cross-attention': 'encoder_decoder encoder_layers cross_attention bidirectional t5 bert '
    'encoder_num_layers decoder_num_layers',
    'inference beyond a forward': 'kv_cache decode speculative_decoding max_new_tokens inference',
    'faults and noise of machines': 'fault_tolerance elastic mtbf jitter noise stragglers',
    'compilers and captured graphs as a choice of the schedule': 'cuda_graph cuda_graphs enable_cuda_graph '
    'torch_compile compile xla jit jit_level',
    'in-network reduction as a choice of the schedule': 'sharp use_sharp nccl_algo nccl_nvls nccl_proto',
}
"""What is not modelled, and the words that mean it."""
LAYERS: Final[Mapping[str, str]] = {
    'linear': 'fc fully_connected column_parallel_linear row_parallel_linear projection ffn mlp',
    'rms_norm': 'rmsnorm rms',
    'layer_norm': 'layernorm ln norm',
    'silu': 'swish',
    'conv2d': 'conv convolution conv_2d',
    'matmul': 'bmm batch_matmul batchmatmul',
    'transpose': 'permute',
    'reshape': 'view',
    'add': 'residual bias_add plus',
    'multiply': 'product hadamard times',
    'reduce': 'mean reduce_mean',
    'reduce_sum': 'sum',
    'in': 'in_features in_channels input_size fan_in in_dim',
    'out': 'out_features out_channels output_size units fan_out out_dim',
    'vocab': 'num_embeddings vocab_size',
    'width': 'embedding_dim embedding_size',
    'strategy': 'in_strategy sharding shard_strategy',
    'pipeline_stage': 'stage pp_stage',
    'kernel': 'kernel_size',
    'bias': 'use_bias has_bias',
}
"""Kinds of layers of a network and their keys, and other words for them."""
ABSENT_LAYERS: Final = (
    'attention self_attention multi_head_attention flash_attention dropout batch_norm batchnorm group_norm pool '
    'max_pool avg_pool max_pool2d lstm gru rnn concat split slice tanh sigmoid leaky_relu rope rotary moe router topk'
)
VALUES: Final[Mapping[str, str]] = {
    'attention flash': 'flash_attention flash_attention_2 flash_attention_3 flash2 flash_attn fa2 fa3 sdpa fused '
    'flash_attn_2 cudnn',
    'attention unfused': 'eager math core standard naive',
    'precision bf16': 'bfloat16 bf16_mixed b16',
    'precision fp16': 'float16 half fp16_mixed f16',
    'precision fp32': 'float32 float single f32 full',
    'precision fp64': 'float64 double f64',
    'order gpipe': 'fthenb f_then_b schedulegpipe fill_drain all_forward_all_backward afab',
    'order 1f1b': 'pipedream_flush schedule1f1b dapple onef1b 1f1b_non_interleaved',
    'order interleaved-1f1b': 'interleaved interleaved1f1b scheduleinterleaved1f1b vpp virtual_pipeline '
    'interleaved_pipeline megatron_interleaved',
    'order looped-bfs': 'loopedbfs scheduleloopedbfs breadth_first',
    'order interleaved-zero-bubble': 'interleavedzerobubble scheduleinterleavedzerobubble',
    'order zb-h1': 'zbh1 zero_bubble zerobubble zb',
    'order zb-h2': 'zbh2',
    'order zb-v': 'zbv zbvzerobubble schedulezbvzerobubble zero_bubble_v',
    'order zb-1p': 'zb1p',
    'order zb-2p': 'zb2p',
    'order v-min': 'vmin v_min',
    'order v-half': 'vhalf v_half controllable_memory',
    'order dualpipe': 'dualpipe scheduledualpipe',
    'order dualpipe-v': 'dualpipev dualpipe_v scheduledualpipev cut_in_half',
    'recompute full': 'all block uniform layers full_recompute',
    'recompute selective': 'select core_attn attention',
    'context_kind ring': 'p2p megatron_cp_algo ring_attention context_parallel_p2p',
    'context_kind all_to_all': 'a2a ulysses ulysses_cp_algo alltoall heads',
    'context_kind all_gather': 'allgather kvallgather_cp_algo gather kv_all_gather',
    'context_split balanced': 'zigzag head_tail headtail load_balanced dual_chunk',
    'context_split contiguous': 'sequential none',
    'loss cross-entropy': 'ce nll softmax_cross_entropy',
    'loss mse': 'l2 mean_squared_error',
    'loss mae': 'l1 mean_absolute_error',
    'search double-recursive': 'recursive_programming dynamic_programming recursive double_recursive',
    'search sharding-propagation': 'propagation',
    'dataset data-parallel': 'data_parallel dp',
    'dataset full-batch': 'full_batch',
    'gather on-use-twice': 'reshard_after_forward',
}
"""Key and value to write, and other spellings of that value."""
ABSENT_ORDERS: Final = 'chimera hanayo pipedream pipedream_2bw terapipe bitpipe'


FAMILIES: Final[Mapping[str, str]] = {
    r'(^|_)(mxfp8|int8)(_|$)': 'smaller numbers than fp8, and fp8 by blocks',
    r'offload': 'offloading to host memory or disk',
    r'^lora_': 'low-rank adapters',
}
"""Parts of words that are enough to tell what they mean."""
AROUND: Final = re.compile(r'^(use|enable|num|n|base|ici|dcn|target)_|_(size|degree|num|count|world_size|factor|dim)$')
"""What words have around them without meaning something else."""


NOT_MODELLED: Final = 'docs/not_modelled.md'


class Told(NamedTuple):
    """What is said of a word, and what to write instead."""

    what: str
    instead: str


def _by_word(table: Mapping[str, str]) -> dict[str, str]:
    return {word: name for name, words in table.items() for word in words.split()}


_WRITE: Final = _by_word(KEYS)
_IS_ABSENT: Final = _by_word(ABSENT)
_LAYER_WORDS: Final = _by_word(LAYERS)
_HOMES: Final = {
    field.name: f'{owner}{field.name}'
    for kind, owner in ((Transformer, TRANSFORMER), (Workload, 'workload.'), (Plan, 'plan.'))
    for field in fields(kind)
    if field.name != 'model'
}
"""Our own keys, for those in the wrong place."""
_CHOSEN: Final = ('attention', 'precision', 'gradients', 'order', 'optimizer', 'zero', 'recompute', 'search')
_OTHER_VALUES: Final = {
    (name.split()[0], word.replace('_', '')): name.split()[1]
    for name, words in VALUES.items()
    for word in words.split()
}


def plain(word: str) -> str:
    """A word in lower case, its parts joined by ``_``: ``numLayers``, ``--num-layers`` are ``num_layers``."""
    parted = re.sub(r'(?<=[a-z0-9])(?=[A-Z][a-z])', '_', word[:60])
    return re.sub(r'[^a-z0-9]+', '_', parted.lower()).strip('_')


def key_term(key: Key) -> Told | None:
    """What to say of an unknown key that is a word of the field; None of others."""
    *above, word = map(str, key)
    if above[:2] == ['workload', 'network'] and len(above) > 2:
        return _layer_term(plain(word))
    known = _known(plain(word))
    if absent := _absent_of(known):
        return absent
    if known not in _WRITE:
        home = _HOMES.get(word, '')
        return Told('unknown key', f'write {home}') if home else None
    place, colon, value = _WRITE[known].partition(': ')
    owner, _, name = place.rpartition('.')
    if owner.startswith('workload.optimizer') and above[:2] == ['workload', 'optimizer']:
        owner = '.'.join(above)
    # In its own place a key is written without what is above it.
    short = name if owner == '.'.join(above) else place
    return Told('unknown key', f'write {short}{colon}{value}')


def _known(word: str) -> str:
    """The word, or what is left of it without what many words have around them, if that is in a table."""
    shorter = AROUND.sub('', word, count=1)
    # Twice, for words may have something before them and behind.
    tries = (word, shorter, AROUND.sub('', shorter))
    return next((one for one in tries if one in _WRITE or one in _IS_ABSENT), word)


def _absent_of(word: str) -> Told | None:
    """Of a word for what is not modelled."""
    family = next((what for pattern, what in FAMILIES.items() if re.search(pattern, word)), '')
    found = _IS_ABSENT.get(word, '' if word in _WRITE else family)
    return _absent(found) if found else None


def _layer_term(word: str) -> Told | None:
    """Of a kind or key of a network's layers."""
    if word in ABSENT_LAYERS.split():
        return _absent(f'{word} as a layer of a network')
    return Told('unknown key', f'write {_LAYER_WORDS[word]}') if word in _LAYER_WORDS else None


def value_term(key: Key, value: str) -> Told | None:
    """What to say of an unknown value that is a word of the field; None of others."""
    name, known = str(key[-1]), plain(value)
    # Classes of torch are written together: ScheduleInterleaved1F1B.
    if key[:2] == ('cluster', 'links'):
        return Told(f'a factor of the profile is wanted (got "{value[:38]}")', 'write e.g. 0.5 for half its bandwidth')
    found = _OTHER_VALUES.get((name, known.replace('_', '')))
    if found:
        return Told(f'unknown value (got "{value[:38]}")', f'write {found}')
    if name == 'order' and known in ABSENT_ORDERS.split():
        return _absent(f'the order {value[:38]}')
    if name == 'precision' and _WRITE.get(known) == 'workload.fp8':
        return Told(f'unknown value (got "{value[:38]}")', 'write bf16, and fp8: hybrid beside it')
    if name == 'attention' and _WRITE.get(known, '').startswith('plan.context'):
        return Told(f'unknown value (got "{value[:38]}")', f'write flash, and {_WRITE[known]}')
    return _absent_of(known) if name in _CHOSEN else None


def _absent(what: str) -> Told:
    return Told(f'not modelled: {what}', f'see {NOT_MODELLED}')
