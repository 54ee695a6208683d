"""Megatron-LM's flags: which key each becomes, and which change nothing of a step.

The names and defaults are those of megatron/training/arguments.py and megatron/core of NVIDIA/Megatron-LM.
"""

from __future__ import annotations

from typing import Final

from simpar.importing import megatron_model, megatron_plan
from simpar.importing.flags import Row, Source, count, number, ruled

_MODEL: Final = 'workload.transformer'
ROWS: Final[dict[str, Row]] = {
    'num-layers': count(f'{_MODEL}.layers'),
    'hidden-size': count(f'{_MODEL}.hidden'),
    'num-attention-heads': count(f'{_MODEL}.heads'),
    'seq-length': count(f'{_MODEL}.sequence'),
    'kv-channels': ruled(f'{_MODEL}.head_dim', 'the same number, without latent attention'),
    'init-method-std': number(f'{_MODEL}.init_std'),
    'norm-epsilon': number(f'{_MODEL}.norm_epsilon'),
    'rotary-base': ruled(f'{_MODEL}.rope_theta', 'the same number, with rotary positions'),
    'rotary-percent': ruled(f'{_MODEL}.rotary_share', 'the same number, with rotary positions'),
    'rotary-interleaved': ruled(f'{_MODEL}.rope_interleaved', 'true, with rotary positions'),
    'use-rope-scaling': ruled(f'{_MODEL}.rope_scaling', '[factor, 1, 4, 8192]'),
    'rope-scaling-factor': ruled(f'{_MODEL}.rope_scaling', 'the factor of use-rope-scaling'),
    'rotary-seq-len-interpolation-factor': ruled(f'{_MODEL}.rope_scaling', '[factor]'),
    'position-embedding-type': ruled(f'{_MODEL}.position', 'learned_absolute: learned, rope: rotary, none: none'),
    'use-rotary-position-embeddings': ruled(f'{_MODEL}.position', 'rotary'),
    'no-position-embedding': ruled(f'{_MODEL}.position', 'none, unless positions are rotary'),
    'max-position-embeddings': ruled(f'{_MODEL}.positions', 'the same number, with learned positions'),
    'ffn-hidden-size': count(
        f'{_MODEL}.ffn', 'without it 4 × hidden; with swiglu 8/3 × hidden, down to a multiple of 64'
    ),
    'group-query-attention': ruled(f'{_MODEL}.kv_heads', 'num-query-groups'),
    'num-query-groups': ruled(f'{_MODEL}.kv_heads', 'the same number, with group-query-attention'),
    'swiglu': ruled(f'{_MODEL}.activation', 'swiglu'),
    'squared-relu': ruled(f'{_MODEL}.activation', 'squared_relu'),
    'openai-gelu': ruled(f'{_MODEL}.activation', 'gelu_tanh'),
    'quick-geglu': ruled(f'{_MODEL}.activation', 'geglu', 'another curve of the same cost'),
    'normalization': ruled(f'{_MODEL}.norm', 'RMSNorm: rms_norm, LayerNorm: layer_norm'),
    'untie-embeddings-and-output-weights': ruled(f'{_MODEL}.tied', 'false; without it true'),
    'disable-bias-linear': ruled(f'{_MODEL}.bias', 'none; without it qkv, proj and ffn'),
    'add-qkv-bias': ruled(f'{_MODEL}.bias', 'qkv'),
    'attention-dropout': ruled(f'{_MODEL}.dropout', 'the same number; 0.1 without it'),
    'hidden-dropout': ruled(f'{_MODEL}.dropout', 'the same number; 0.1 without it'),
    'attention-backend': ruled(f'{_MODEL}.attention', 'flash, fused, auto: flash; unfused, local: unfused'),
    'use-flash-attn': ruled(f'{_MODEL}.attention', 'flash'),
    'transformer-impl': ruled(f'{_MODEL}.attention', 'local without use-flash-attn: unfused'),
    'qk-layernorm': ruled(f'{_MODEL}.qk_norm', 'true'),
    'window-size': ruled(f'{_MODEL}.window', 'what it says to the left, and the token itself'),
    'window-attn-skip-freq': ruled(f'{_MODEL}.window', 'of so many layers the last has no window'),
    'multi-latent-attention': ruled(f'{_MODEL}.kv_lora_rank', 'kv-lora-rank, 32 without it'),
    'kv-lora-rank': ruled(f'{_MODEL}.kv_lora_rank', 'the same number, with multi-latent-attention'),
    'q-lora-rank': ruled(f'{_MODEL}.q_lora_rank', 'the same number, with multi-latent-attention'),
    'qk-head-dim': ruled(f'{_MODEL}.qk_nope_head_dim', 'the same number, with multi-latent-attention'),
    'qk-pos-emb-head-dim': ruled(f'{_MODEL}.qk_rope_head_dim', 'the same number, with multi-latent-attention'),
    'v-head-dim': ruled(f'{_MODEL}.v_head_dim', 'the same number, with multi-latent-attention'),
    'mtp-num-layers': ruled(f'{_MODEL}.mtp_layers', '0 alone'),
    'vocab-size': ruled(f'{_MODEL}.vocab', 'the same number'),
    'padded-vocab-size': ruled(f'{_MODEL}.vocab', 'the same number'),
    'make-vocab-size-divisible-by': ruled(f'{_MODEL}.pad_vocab', 'times the tensor ranks; 128 without it'),
    'tokenizer-type': ruled(f'{_MODEL}.vocab', 'words of a known tokenizer, where vocab-size is missing'),
    'tokenizer-model': ruled(f'{_MODEL}.vocab', 'words of a known tokenizer, by the name in its path'),
    'tokenizer-name-or-path': ruled(f'{_MODEL}.vocab', 'words of a known tokenizer, by the name in its path'),
    'num-experts': ruled(f'{_MODEL}.experts.count', 'the same number'),
    'moe-router-topk': ruled(f'{_MODEL}.experts.top_k', 'the same number; 2 without it'),
    'moe-ffn-hidden-size': ruled(f'{_MODEL}.experts.ffn', 'the same number; without it as ffn-hidden-size'),
    'moe-shared-expert-intermediate-size': ruled(f'{_MODEL}.experts.shared', 'the same number'),
    'moe-shared-expert-gate': ruled(f'{_MODEL}.experts.shared_gate', 'true'),
    'moe-layer-freq': ruled(f'{_MODEL}.experts.every', 'a number: every; a list as ([0]*1+[1]*26): first_dense'),
    'moe-router-score-function': ruled(f'{_MODEL}.experts.score', 'softmax or sigmoid'),
    'moe-router-pre-softmax': ruled(f'{_MODEL}.experts.normalise', 'false'),
    'moe-router-topk-scaling-factor': ruled(f'{_MODEL}.experts.scaling_factor', 'the same number'),
    'moe-router-num-groups': ruled(f'{_MODEL}.experts.groups', 'the same number'),
    'moe-router-group-topk': ruled(f'{_MODEL}.experts.group_top_k', 'the same number'),
    'moe-router-enable-expert-bias': ruled(f'{_MODEL}.experts.correction_bias', 'true'),
    'moe-expert-capacity-factor': ruled(f'{_MODEL}.experts.capacity', 'the same number'),
    'moe-aux-loss-coeff': ruled(f'{_MODEL}.experts.aux_loss', 'the same number'),
    'moe-router-load-balancing-type': ruled(f'{_MODEL}.experts.aux_group', 'seq_aux_loss: sample; aux_loss: rank'),
    'moe-token-dispatcher-type': ruled('plan.expert', 'alltoall alone'),
    'expert-model-parallel-size': ruled('plan.expert', 'the same number'),
    'global-batch-size': ruled('workload.batch', 'the same number; without it micro-batch-size × data ranks'),
    'micro-batch-size': ruled('plan.micro_batches', 'global batch / (micro-batch-size × data ranks)'),
    'bf16': ruled('workload.precision', 'bf16, master weights, gradients in fp32'),
    'fp16': ruled('workload.precision', 'fp16, master weights, loss_scale'),
    'loss-scale': ruled('workload.loss_scale', 'the same number; 65536 without it'),
    'accumulate-allreduce-grads-in-fp32': ruled('workload.gradients', 'fp32'),
    'grad-reduce-in-bf16': ruled('workload.gradients', 'bf16'),
    'fp8-format': ruled('workload.fp8', 'the same word'),
    'fp8-recipe': ruled('workload.fp8', 'delayed and tensorwise alone'),
    'optimizer': ruled('workload.optimizer', 'adam: adamw, sgd: momentum, muon: muon'),
    'lr': ruled('workload.optimizer.adamw.learning_rate', 'the same number, for all steps'),
    'adam-beta1': ruled('workload.optimizer.adamw.beta1', 'the same number'),
    'adam-beta2': ruled('workload.optimizer.adamw.beta2', 'the same number'),
    'adam-eps': ruled('workload.optimizer.adamw.epsilon', 'the same number'),
    'sgd-momentum': ruled('workload.optimizer.momentum.momentum', 'the same number'),
    'weight-decay': ruled('workload.optimizer.adamw.weight_decay', 'the same number; 0.01 without it'),
    'clip-grad': number('workload.clip_norm', '1.0 without it'),
    'tensor-model-parallel-size': count('plan.tensor'),
    'pipeline-model-parallel-size': count('plan.pipeline'),
    'context-parallel-size': ruled('plan.context', 'the same number'),
    'cp-comm-type': ruled('plan.context_kind', 'p2p: ring, a2a: all_to_all, allgather: all_gather'),
    'sequence-parallel': ruled('plan.sequence_parallel', 'true, where tensor is above 1'),
    'num-layers-per-virtual-pipeline-stage': ruled(
        'plan.chunks', 'layers / (pipeline × number), order interleaved-1f1b'
    ),
    'num-virtual-stages-per-pipeline-rank': ruled('plan.chunks', 'the same number, order interleaved-1f1b'),
    'decoder-first-pipeline-num-layers': ruled('plan.stages', 'layers of the first stage'),
    'decoder-last-pipeline-num-layers': ruled('plan.stages', 'layers of the last stage'),
    'no-overlap-p2p-communication': ruled('plan.exchange', 'fused; without it and with chunks separate, received late'),
    'use-distributed-optimizer': ruled('plan.zero', '1'),
    'use-megatron-fsdp': ruled('plan.zero', 'by data-parallel-sharding-strategy'),
    'use-torch-fsdp2': ruled('plan.zero', '3'),
    'data-parallel-sharding-strategy': ruled('plan.zero', 'optim: 1, optim_grads: 2, optim_grads_params: 3'),
    'overlap-grad-reduce': ruled('plan.reduce_gradients', 'overlapped; without it end'),
    'overlap-param-gather': ruled('plan.gather', 'after-update; with FSDP plan.prefetch 1'),
    'recompute-activations': ruled('plan.recompute', 'selective'),
    'recompute-granularity': ruled('plan.recompute', 'the same word'),
    'recompute-method': ruled('plan.recompute', 'block: patterns of the first layers of each stage'),
    'recompute-num-layers': ruled('plan.recompute', 'layers of a stage, with recompute-method block'),
    'recompute-modules': ruled('plan.recompute', 'core_attn: selective'),
    'tp-comm-overlap': ruled('plan.tiles', 'as many as tensor ranks, with sequence-parallel'),
    'nproc-per-node': ruled('cluster.devices', 'the same number, where it is not all of a node'),
    'nnodes': ruled('cluster.nodes', 'the same number'),
    'worker-num': ruled('cluster.nodes', 'devices in all, divided by those of a node'),
    'cuda-device-max-connections': ruled('cluster.work_queues', 'the same number, of the environment'),
}
ALIASES: Final = {
    'layernorm-epsilon': 'norm-epsilon', 'encoder-seq-length': 'seq-length', 'encoder-num-layers': 'num-layers',
    'num-nodes': 'nnodes', 'world-size': 'worker-num', 'num-gpus': 'nproc-per-node', 'nproc-per-node': 'nproc-per-node',
    'model-parallel-size': 'tensor-model-parallel-size', 'checkpoint-activations': 'recompute-activations',
    'batch-size': 'micro-batch-size', 'num-virtual-stages-per-pipeline-rank': 'num-virtual-stages-per-pipeline-rank',
    'use-fsdp2': 'use-torch-fsdp2', 'use-custom-fsdp': 'use-megatron-fsdp', 'use-rotary-position-embedding':
    'use-rotary-position-embeddings', 'fp8-hybrid': 'fp8-format',
}  # fmt: skip
IDLE: Final = {
    'where a run begins, reads, writes and reports': 'save load save-interval load-* ckpt-* async-save dist-ckpt-* '
    'use-dist-ckpt* auto-detect-ckpt-format no-load-* no-save-* finetune pretrained-checkpoint tensorboard-* '
    'wandb-* log-* timing-* exit-* eval-iters eval-interval profile* use-pytorch-profiler record-memory-history '
    'memory-snapshot-path one-logger-* enable-one-logger no-one-logger non-persistent-* save-retain-interval '
    'use-checkpoint-args exit-on-missing-checkpoint verify-integrity* logging-level test-mode skip-train '
    'run-workload-inspector-server',
    'data and words': 'trainer data-* train-data-* valid-data-* test-data-* split vocab-file merge-file tokenizer-* '
    'mock-data num-workers dataloader-type no-create-attention-mask-in-dataloader create-attention-mask-in-dataloader '
    'no-mmap-bin-files tiktoken-* eod-mask-loss vocab-extra-ids dataset-* per-split-data-args-path '
    'num-dataset-builder-threads object-storage-* s3-cache-path handler-name prompt-type* is-instruction-dataset '
    'variable-seq-lengths* sft-* reset-position-ids train-iters train-samples seed data-parallel-random-init',
    'a rate, a start or a scale of learning': 'lr-* min-lr decoupled-* start-weight-decay end-weight-decay '
    'weight-decay-* override-opt-param-scheduler override-opt-param-scheduler use-checkpoint-opt-param-scheduler '
    'use-checkpoint-opt-param-scheduler initial-loss-scale min-loss-scale loss-scale-window hysteresis '
    'init-method-xavier-uniform no-initialization use-cpu-initialization perform-initialization '
    'apply-layernorm-1p no-weight-decay-* embedding-init-method-std adam-* warmup',
    'how processes find one another': 'master-addr master-port master-addr master-port node-rank node-rank rdzv-* '
    'local-rank max-restarts max-restarts rdzv-* distributed-backend distributed-timeout-minutes '
    'use-gloo-process-groups disable-gloo-process-groups nccl-* lazy-mpu-init tee redirects '
    'slurm-* hostfile include exclude no-ssh standalone monitor-interval run-path start-method local-ranks-filter '
    'enable-ft-package *-timeout local-worker-num log-dir',
    'the way of ops that simpar takes anyway': 'use-mcore-models no-masked-softmax-fusion no-bias-gelu-fusion '
    'no-bias-swiglu-fusion no-bias-dropout-fusion bias-swiglu-fusion bias-gelu-fusion no-rope-fusion '
    'apply-rope-fusion cross-entropy-loss-fusion cross-entropy-fusion-impl no-gradient-accumulation-fusion '
    'gradient-accumulation-fusion attention-softmax-in-fp32 no-persist-layer-norm persist-layer-norm '
    'no-async-tensor-model-parallel-allreduce async-tensor-model-parallel-allreduce moe-grouped-gemm '
    'moe-permute-fusion moe-router-fusion moe-use-legacy-grouped-gemm apply-query-key-layer-scaling '
    'no-contiguous-buffers-in-local-ddp deprecated-use-mcore-models use-legacy-models '
    'export-force-local-attention rope-type',
    'housekeeping of a process': 'manual-gc manual-gc-interval empty-unused-memory-level '
    'no-check-for-nan-in-loss-and-grad check-for-* rerun-* deterministic-mode te-rng-tracker '
    'inference-* max-tokens-to-oom use-fused-weighted-* '
    'use-pytorch-* disable-straggler-on-startup calculate-per-token-loss no-barrier-with-level-1-timing '
    'barrier-with-L1-time high-priority-stream-groups cuda-graph-warmup-steps',
    'a scale that values alone have': 'mscale mscale-all-dim rotary-scaling-factor beta-fast beta-slow softmax-type '
    'fp8-amax-* fp8-margin fp8-interval no-fp8-wgrad moe-router-bias-update-rate moe-z-loss-coeff '
    'moe-input-jitter-eps moe-router-dtype moe-router-padding-for-fp8 moe-token-drop-policy '
    'moe-router-force-load-balancing glu-linear-offset activation-func-clamp-value original-max-position-embeddings '
    'mtp-loss-scaling-factor',
}  # fmt: skip
MISSING: Final = {
    'a batch that grows in the first steps': 'rampup-batch-size step-batch-size-schedule',
    'captured graphs, which are the host mode of a profile': 'enable-cuda-graph external-cuda-graph cuda-graph-* '
    'enable-full-iteration-cuda-graph',
    'weights held in 8 bits': 'fp8-param-gather fp8-param',
    'a layout of stages with embedding and loss as layers': 'account-for-* pipeline-model-parallel-layout '
    'standalone-embedding-stage',
    'offloading to host memory': 'cpu-offloading* optimizer-cpu-offload optimizer-offload-* '
    'use-precision-aware-optimizer offload-* fine-grained-activation-offloading overlap-cpu-optimizer-*',
    'optimizer states of fewer bits': 'main-grads-dtype main-params-dtype exp-avg-dtype exp-avg-sq-dtype',
    'tensor parallelism of experts apart from the rest': 'expert-tensor-parallel-size',
    'overlap of expert exchange and compute': 'moe-shared-expert-overlap overlap-moe-* moe-alltoall-* '
    'moe-fb-overlap delay-wgrad-compute moe-enable-deepep moe-flex-*',
    'capacity of experts as padding': 'moe-pad-expert-input-to-capacity',
    'how ranks lie on nodes: stages inside of data ranks': 'use-tp-pp-dp-mapping',
    'a size of buckets, for which plan.fusion is to be written by hand': 'ddp-bucket-size ddp-num-buckets',
    'groups of gradients': 'ddp-average-in-collective '
    'num-distributed-optimizer-instances align-* no-align-* overlap-param-gather-with-optimizer-step '
    'delay-grad-reduce ddp-pad-buckets-for-high-nccl-busbw',
    'context parallelism in levels': 'hierarchical-context-parallel-sizes dynamic-context-parallel',
    'samples of unlike lengths': 'reset-attention-mask use-packed-sequence* sft variable-sequence-lengths',
    'recomputation of some more modules': 'distribute-saved-activations',
    'layers of another kind': 'hybrid-* mamba-* is-hybrid-model spec heterogeneous-* encoder-* decoder-seq-length '
    'experimental-attention-variant enable-gpt-oss no-rope-freq linear-attention* add-position-embedding bert-* '
    'retro-*',
    'a chunked or fused head': 'mtp-* defer-embedding-wgrad-compute wgrad-deferral-limit',
    'overlap of tensor parallelism by parts': 'tp-comm-* disable-tp-comm-*',
    'how sends of the pipeline overlap': 'overlap-p2p-communication-warmup-flush microbatch-group-size-per-virtual-*',
    'another optimizer': 'muon-* use-layer-wise-distributed-optimizer',
    'adapters': 'lora-* peft-*',
    'numbers below 8 bits': 'fp4-* first-last-layers-bf16 num-layers-at-*',
}  # fmt: skip
MEGATRON: Final = Source(
    name='Megatron-LM',
    profile='h100-sxm-8',
    rows=ROWS,
    idle=IDLE,
    not_modelled=MISSING,
    aliases=ALIASES,
    rules=(*megatron_model.RULES, *megatron_plan.RULES),
    framework=megatron_model.framework,
)
