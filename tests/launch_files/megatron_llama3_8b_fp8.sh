#!/bin/bash
# The flags of NVIDIA/Megatron-LM examples/llama/train_llama3_8b_h100_fp8.sh, in a script of our own.
DATA=${1:-/data}
GBS=${GBS:-128}
MBS=${MBS:-1}
SEQ=${SEQ:-8192}
TP=${TP:-1}

FIRST=(
    --adam-beta1 0.9
    --adam-beta2 0.95
    --apply-layernorm-1p
    --attention-backend fused
    --attention-dropout 0.0
    --bf16
    --calculate-per-token-loss
    --ckpt-format torch_dist
    --clip-grad 1.0
    --context-parallel-size 1
    --cross-entropy-loss-fusion
    --data-cache-path ./benchmark_cache_llama3_8b_fp8
    --decoupled-lr 5.0e-4
    --decoupled-min-lr 4.5e-5
    --disable-bias-linear
    --distributed-timeout-minutes 60
    --empty-unused-memory-level 1
    --eval-interval 100
    --eval-iters 32
    --exit-duration-in-mins 235
    --ffn-hidden-size 14336
    --fp8-amax-compute-algo max
    --fp8-amax-history-len 1024
    --fp8-format hybrid
    --fp8-param-gather
    --global-batch-size $GBS
    --grad-reduce-in-bf16
    --group-query-attention
    --hidden-dropout 0.0
    --hidden-size 4096
    --init-method-std 0.0134
    --kv-channels 128
    --load checkpoints/llama3_8b_fp8
    --log-interval 1
    --log-throughput
    --lr 0.00015
    --lr-decay-samples 1949218748
)
REST=" \
    --lr-decay-style cosine \
    --lr-warmup-samples 3906252 \
    --manual-gc \
    --max-position-embeddings 8192 \
    --micro-batch-size $MBS \
    --min-lr 0.00001 \
    --mock-data \
    --no-create-attention-mask-in-dataloader \
    --no-mmap-bin-files \
    --normalization RMSNorm \
    --num-attention-heads 32 \
    --num-layers 32 \
    --num-query-groups 8 \
    --num-workers 1 \
    --overlap-grad-reduce \
    --overlap-param-gather \
    --position-embedding-type rope \
    --profile \
    --profile-step-end 6 \
    --profile-step-start 4 \
    --rotary-base 1000000 \
    --rotary-percent 1.0 \
    --save checkpoints/llama3_8b_fp8 \
    --save-interval 1000 \
    --seq-length $SEQ \
    --sequence-parallel \
    --split '99,1,0' \
    --swiglu \
    --tensor-model-parallel-size $TP \
    --tensorboard-dir tensorboard_logs/llama3_8b_fp8 \
    --tiktoken-pattern v2 \
    --tokenizer-type NullTokenizer \
    --train-samples 1953125000 \
    --untie-embeddings-and-output-weights \
    --use-distributed-optimizer \
    --use-mcore-models \
    --vocab-size 128256 \
    --weight-decay 0.1"

torchrun --nproc_per_node 8 --nnodes 1 --node_rank 0 --master_addr localhost --master_port 29500 pretrain_gpt.py \
    "${FIRST[@]}" \
    $REST
