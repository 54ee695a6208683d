#!/bin/bash
# The flags of NVIDIA/Megatron-LM examples/mixtral/train_mixtral_8x7b_distributed.sh, in a script of our own.
DATA=${1:-/data}
GBS=${GBS:-256}
MBS=${MBS:-1}
PP=${PP:-4}
SEQ=${SEQ:-4096}
TP=${TP:-1}

FIRST=(
    --attention-dropout 0.0
    --bf16
    --clip-grad 1.0
    --data-path $DATA
    --disable-bias-linear
    --eval-interval 1000
    --eval-iters 10
    --expert-model-parallel-size 8
    --ffn-hidden-size 14336
    --global-batch-size $GBS
    --group-query-attention
    --hidden-dropout 0.0
    --hidden-size 4096
    --init-method-std 0.01
    --load $DATA
    --log-interval 1
    --lr 1e-4
    --lr-decay-iters 320000
    --lr-decay-style cosine
    --lr-warmup-iters 500
    --max-position-embeddings 32768
    --micro-batch-size $MBS
    --min-lr 1.0e-5
    --moe-aux-loss-coeff 1e-2
    --moe-grouped-gemm
    --moe-router-load-balancing-type aux_loss
    --moe-router-topk 2
    --moe-token-dispatcher-type alltoall
)
REST=" \
    --no-load-optim \
    --no-load-rng \
    --no-masked-softmax-fusion \
    --no-position-embedding \
    --normalization RMSNorm \
    --num-attention-heads 32 \
    --num-experts 8 \
    --num-layers 32 \
    --num-query-groups 8 \
    --overlap-grad-reduce \
    --overlap-param-gather \
    --pipeline-model-parallel-size $PP \
    --position-embedding-type rope \
    --rotary-base 1000000 \
    --save $DATA \
    --save-interval 10000 \
    --seq-length $SEQ \
    --sequence-parallel \
    --split 99990,8,2 \
    --swiglu \
    --tensor-model-parallel-size $TP \
    --tensorboard-dir $DATA \
    --tokenizer-model $DATA \
    --tokenizer-type Llama2Tokenizer \
    --train-iters 500000 \
    --untie-embeddings-and-output-weights \
    --use-distributed-optimizer \
    --use-mcore-models \
    --weight-decay 0.1"

torchrun --nproc_per_node 8 --nnodes 1 --node_rank 0 --master_addr localhost --master_port 29500 pretrain_gpt.py \
    "${FIRST[@]}" \
    $REST
