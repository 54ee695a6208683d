"""The settings of MindFormers' YAML: their keys, or why they have none."""

from __future__ import annotations

from typing import Final

from simpar.importing.flags import Row, number, ruled

_T: Final = 'workload.transformer'
_M: Final = 'model.model_config'
_P: Final = 'parallel_config'
_A: Final = 'workload.optimizer.adamw'
PASSES: Final = {
    'matmul_grad_comm_overlap': 'matmul_grad_comm_overlap', 'grad_matmul_communication_overlap':
    'matmul_grad_comm_overlap', 'enable_grad_comm_opt': 'enable_grad_comm_opt', 'grad_computation_allreduce_overlap':
    'enable_grad_comm_opt', 'enable_opt_shard_comm_opt': 'enable_opt_shard_comm_opt', 'computation_allgather_overlap':
    'enable_opt_shard_comm_opt', 'recompute_comm_overlap': 'recompute_comm_overlap',
    'recomputation_communication_overlap': 'recompute_comm_overlap',
}  # fmt: skip
"""Keys of parallel_speed_up.json, their older names and those of MindSpore 2.10, and the pass that each turns on."""
ROWS: Final[dict[str, Row]] = {
    f'{_M}.num_layers': ruled(f'{_T}.layers', 'the same number'),
    f'{_M}.hidden_size': ruled(f'{_T}.hidden', 'the same number'),
    f'{_M}.num_heads': ruled(f'{_T}.heads', 'the same number'),
    f'{_M}.n_kv_heads': ruled(f'{_T}.kv_heads', 'the same number'),
    f'{_M}.head_dim': ruled(f'{_T}.head_dim', 'the same number'),
    f'{_M}.intermediate_size': ruled(f'{_T}.ffn', 'the same number; without it 8/3 × hidden, up to multiple_of'),
    f'{_M}.multiple_of': ruled(f'{_T}.ffn', 'what ffn is a multiple of; 256 without it'),
    f'{_M}.ffn_dim_multiplier': ruled(f'{_T}.ffn', 'what ffn is multiplied by'),
    f'{_M}.expand_ratio': ruled(f'{_T}.ffn', 'times hidden, of a GPT-2'),
    f'{_M}.vocab_size': ruled(f'{_T}.vocab', 'the same number'),
    f'{_M}.seq_length': ruled(f'{_T}.sequence', 'the same number'),
    f'{_M}.rms_norm_eps': ruled(f'{_T}.norm_epsilon', 'the same number'),
    f'{_M}.theta': ruled(f'{_T}.rope_theta', 'the same number'),
    f'{_M}.initializer_range': ruled(f'{_T}.init_std', 'the same number'),
    f'{_M}.tie_word_embeddings': ruled(f'{_T}.tied', 'the same'),
    f'{_M}.qkv_has_bias': ruled(f'{_T}.bias', 'qkv'),
    f'{_M}.qk_layernorm': ruled(f'{_T}.qk_norm', 'the same'),
    f'{_M}.hidden_act': ruled(f'{_T}.activation', 'silu and swiglu: swiglu; gelu: gelu'),
    f'{_M}.use_flash_attention': ruled(f'{_T}.attention', 'true: flash, false: unfused'),
    f'{_M}.type': ruled(_T, 'a Llama, unless its name has GPT'),
    f'{_M}.hidden_dropout': ruled(f'{_T}.dropout', 'the largest of the rates'),
    f'{_M}.attention_dropout': ruled(f'{_T}.dropout', 'the largest of the rates'),
    f'{_M}.compute_dtype': ruled('workload.precision', 'bfloat16: bf16, float16: fp16, float32: fp32'),
    f'{_M}.param_init_type': ruled(f'{_A}.master_weights', 'true where products are in 16 bits'),
    f'{_M}.offset': ruled('plan.stages', 'layers / stages + the number of each stage'),
    f'{_M}.pp_interleave_num': ruled('plan.chunks', 'the same number, order mindspore-2.10/1f1b'),
    f'{_M}.kv_lora_rank': ruled(f'{_T}.kv_lora_rank', 'the same number'),
    f'{_M}.q_lora_rank': ruled(f'{_T}.q_lora_rank', 'the same number'),
    f'{_M}.qk_nope_head_dim': ruled(f'{_T}.qk_nope_head_dim', 'the same number'),
    f'{_M}.qk_rope_head_dim': ruled(f'{_T}.qk_rope_head_dim', 'the same number'),
    f'{_M}.v_head_dim': ruled(f'{_T}.v_head_dim', 'the same number'),
    'moe_config.expert_num': ruled(f'{_T}.experts.count', 'the same number'),
    'moe_config.num_experts_chosen': ruled(f'{_T}.experts.top_k', 'the same number'),
    'moe_config.moe_intermediate_size': ruled(f'{_T}.experts.ffn', 'the same number'),
    'moe_config.capacity_factor': ruled(f'{_T}.experts.capacity', 'the same number, where it is above 0'),
    'moe_config.aux_loss_factor': ruled(f'{_T}.experts.aux_loss', 'the same number'),
    'moe_config.first_k_dense_replace': ruled(f'{_T}.experts.first_dense', 'the same number'),
    'moe_config.shared_expert_num': ruled(f'{_T}.experts.shared', 'times the width of an expert'),
    f'{_P}.data_parallel': ruled('plan.data', 'the same number'),
    f'{_P}.model_parallel': ruled('plan.tensor', 'the same number'),
    f'{_P}.pipeline_stage': ruled('plan.pipeline', 'the same number'),
    f'{_P}.context_parallel': ruled('plan.context', 'the same number'),
    f'{_P}.context_parallel_algo': ruled('plan.context_kind', 'ulysses_cp: all_to_all, colossalai_cp: ring'),
    f'{_P}.expert_parallel': ruled('plan.expert', 'the same number'),
    f'{_P}.use_seq_parallel': ruled('plan.sequence_parallel', 'the same, where tensor is above 1'),
    f'{_P}.micro_batch_num': ruled('plan.micro_batches', 'the same number, with a pipeline'),
    f'{_P}.gradient_aggregation_group': ruled('plan.fusion', 'messages of as many layers: listed'),
    'micro_batch_interleave_num': ruled('plan.copies', 'the same number'),
    'runner_config.batch_size': ruled('workload.batch', 'times data ranks, micro-batches and copies'),
    'runner_config.gradient_accumulation_steps': ruled('plan.micro_batches', 'times those of the pipeline'),
    'parallel.enable_parallel_optimizer': ruled('plan.hsdp', 'level1'),
    'parallel.parallel_optimizer_config.parallel_optimizer_threshold': ruled('plan.shard_threshold', 'KiB'),
    'parallel.parallel_optimizer_config.gradient_accumulation_shard': ruled('plan.accumulate', 'sharded or full'),
    'parallel.parallel_optimizer_config.optimizer_weight_shard_size': ruled('plan.shard_group', 'the same number'),
    'parallel.pipeline_config.pipeline_interleave': ruled('plan.chunks', 'by pp_interleave_num'),
    f'{_P}.seq_split_num': ruled('plan.sequence_chunks', 'the same number, with a seq scheduler'),
    f'{_M}.seq_split_num': ruled('plan.sequence_chunks', 'the same number, with a seq scheduler'),
    'parallel.pipeline_config.pipeline_scheduler': ruled('plan.order', 'mindspore-2.10/ and the same word'),
    'recompute_config.recompute': ruled('plan.recompute', 'true: full'),
    'recompute_config.select_recompute': ruled('plan.recompute', 'true: norms and activation'),
    'recompute_config.mp_comm_recompute': ruled('plan.recompute_communication', 'the same'),
    'optimizer.type': ruled('workload.optimizer', 'names with Adam: adamw'),
    'optimizer.betas': ruled(f'{_A}.beta1', 'the first; the second is beta2'),
    'optimizer.eps': number(f'{_A}.epsilon'),
    'optimizer.weight_decay': number(f'{_A}.weight_decay'),
    'optimizer.learning_rate': ruled(f'{_A}.learning_rate', 'the same number'),
    'lr_schedule.learning_rate': ruled(f'{_A}.learning_rate', 'the same number, for all steps'),
    'context.max_device_memory': ruled('cluster.reserve', 'memory of the device without it'),
    'context.ascend_config.parallel_speed_up_json_path': ruled('plan.overlap', 'what its JSON turns on'),
    **{f'speed-up.{name}': ruled('plan.overlap', f'{key}, where it is true') for name, key in PASSES.items()},
    'runner_wrapper.use_clip_grad': ruled('workload.clip_norm', 'max_grad_norm, 1.0 without it'),
    'runner_wrapper.max_grad_norm': ruled('workload.clip_norm', 'the same number'),
    'runner_wrapper.scale_sense': ruled('workload.loss_scale', 'with fp16: the same number, 65536 where it moves'),
    'runner_wrapper.scale_sense.loss_scale_value': ruled('workload.loss_scale', 'with fp16: the same number'),
}
_OTHER: Final = {
    'num_hidden_layers': 'num_layers', 'num_attention_heads': 'num_heads', 'num_key_value_heads': 'n_kv_heads',
    'multi_query_group_num': 'n_kv_heads', 'ffn_hidden_size': 'intermediate_size', 'padded_vocab_size': 'vocab_size',
    'kv_channels': 'head_dim', 'rope_theta': 'theta', 'add_qkv_bias': 'qkv_has_bias', 'attention_bias': 'qkv_has_bias',
    'layernorm_epsilon': 'rms_norm_eps', 'model_type': 'type', 'num_query_groups': 'n_kv_heads',
    'hidden_dropout_prob': 'hidden_dropout', 'attention_dropout_prob': 'attention_dropout',
    'hidden_dropout_rate': 'hidden_dropout', 'attention_dropout_rate': 'attention_dropout',
    'inner_hidden_size': 'intermediate_size', 'params_dtype': 'param_init_type', 'normalization_eps': 'rms_norm_eps',
}  # fmt: skip
ALIASES: Final = {
    **{f'{_M}.{old}': f'{_M}.{new}' for old, new in _OTHER.items()},
    'max_device_memory': 'context.max_device_memory',
    'optimizer.beta': 'optimizer.betas', f'{_P}.tensor_model_parallel_size': f'{_P}.model_parallel',
}  # fmt: skip
IDLE_NAMES: Final = {
    'where a run begins, reads, writes and reports': 'seed output_dir load_checkpoint load_ckpt_format src_strategy* '
    'auto_trans_ckpt only_save_strategy resume_training run_mode trainer* callbacks* metric* profile* '
    'init_start_profile '
    'auto_tune filepath_prefix autotune_per_step remote_save_url local_rank_id load_* save_* use_legacy transform_* '
    'monitor_config* tensorboard* print_separate_loss ckpt_* infer* use_graceful_exit eval_callbacks* eval_* do_eval '
    'pretrained_model_dir use_checkpoint_opt_param_scheduler train_precision_sync infer_precision_sync '
    'keep_purely* balanced_load resume_by_last_timestamp_ckpt ignore_data_skip group* data_transform_process',
    'data': 'train_dataset* eval_dataset* processor* train_dataset_task* dataset_config* data_config* '
    'runner_config.epochs '
    'runner_config.sink* runner_config.image_size runner_config.num_classes runner_config.initial_epoch '
    'runner_config.has_trained* runner_config.stop_step',
    'a rate of learning': 'lr_schedule* layer_* lr_scale* optimizer.* grouped_lr_schedule* runner_wrapper.type '
    'runner_wrapper.scale_sense.* runner_wrapper.local_norm runner_wrapper.calculate_per_token_loss',
    'the machine and its compiler': 'context.* use_parallel device_num platform swap_config.swap',
    'the way of ops that simpar takes anyway': f'{_P}.vocab_emb_dp parallel.parallel_mode parallel.gradients_mean '
    'parallel.full_batch parallel.dataset_strategy* parallel.search_mode parallel.loss_repeated_mean '
    'parallel.strategy_ckpt* parallel.enable_alltoall parallel.device_num parallel.auto_parallel_search_mode '
    f'{_M}.qkv_concat {_M}.softmax_compute* {_M}.layernorm_compute* {_M}.rotary_dtype {_M}.embedding_init_type '
    f'{_M}.residual_dtype {_M}.input_sliced_sig {_M}.use_contiguous* {_M}.batch_size {_M}.use_rope_slice '
    f'{_M}.emb*_dropout_prob {_M}.use_past_shard {_M}.res_dtype {_M}.compute_in_2d '
    f'{_M}.bias_dropout_fusion {_M}.use_attn_mask* {_M}.pretrain_seqlen {_M}.sigma {_M}.mean {_M}.parallel_optimizer'
    ' '
    f'{_M}.fused_* {_M}.apply_rope_fusion {_M}.bias_swiglu_fusion {_M}.use_fused* {_M}.layernorm_dtype',
    'words, and how text is generated': f'{_M}.*_token_id {_M}.bos_token_id {_M}.eos_token_id {_M}.pad_token_id '
    f'{_M}.ignore_token_id {_M}.use_past {_M}.repetition_penalty {_M}.max_decode_length {_M}.top_k {_M}.top_p '
    f'{_M}.do_sample {_M}.checkpoint_name_or_path {_M}.max_new_tokens {_M}.use_cache {_M}.auto_map {_M}.architectures '
    f'{_M}.block_size {_M}.num_blocks {_M}.is_dynamic {_M}.auto_register {_M}.temperature {_M}.max_length '
    f'{_M}.return_* {_M}.tokenizer* {_M}.is_encoder* {_M}.eod* {_M}.gmask* {_M}.bos* {_M}.pad* {_M}.prefix*',
    'what the model is, as its type says it too': 'model.arch* model.type model.pretrained* '
    f'{_M}.position_embedding_type {_M}.add_bias_linear {_M}.untie_* {_M}.rmsnorm {_M}.apply_residual* '
    f'{_M}.normalization '
    f'{_M}.max_position_embeddings {_M}.max_position_embedding {_M}.scaling_factor {_M}.extend_method '
    f'{_M}.rope_scaling* '
    f'{_M}.transformers_version {_M}.torch_dtype {_M}.apply_query_key* {_M}.attention_softmax_in_fp32 {_M}.rope_ratio '
    f'{_M}.post_layer_norm {_M}.use_rearrange_rope {_M}.multi_query_attention {_M}.use_prompt_tuning* '
    f'{_M}.gated_linear* '
    f'{_M}.name_or_path {_M}.model_name {_M}.sliding_window {_M}.use_sliding_window {_M}.max_window_layers '
    f'{_M}.mlp_concat {_M}.ffn_concat {_M}.rope_* {_M}.rotary_* {_M}.mscale* {_M}.beta_* {_M}.original_*',
}  # fmt: skip
MISSING: Final = {
    'another pass of parallel_speed_up.json': 'speed-up.*',
    'recomputation of parts': 'recompute_config.recompute_slice_activation recompute_config.select_comm_recompute '
    'recompute_config.parallel_optimizer_comm_recompute recompute_config.select_*',
    'sums of gradients in groups': f'{_P}.gradient_aggregation_group',
    'copies in parts of operators': f'{_M}.fine_grain_interleave',
    'all-to-alls inside of a ring': f'{_P}.ulysses_degree_in_cp',
    'offloading to host memory': 'swap_config*',
    'experts': 'moe_config.* model.moe_config.*',
    'another optimizer parallelism': 'parallel.parallel_optimizer_config.* parallel.optimizer_weight*',
    'adapters, prompts and fewer bits': f'{_M}.pet_config* {_M}.quantization_bit {_M}.pre_seq_len',
    'kernels and precisions of parts': f'{_M}.fp32_residual_connection {_M}.use_prompt_flash_attention '
    f'{_M}.is_sample_acceleration',
}  # fmt: skip
