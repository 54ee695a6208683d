#!/bin/bash
# The flags of NVIDIA/Megatron-LM examples/gpt3/train_gpt3_175b_distributed.sh, in a script of our own.
DATA=${1:-/data}
GBS=${GBS:-1536}
MBS=${MBS:-1}
PP=${PP:-16}
SEQ=${SEQ:-2048}
TP=${TP:-8}

FIRST=(
    --adam-beta1 0.9
    --adam-beta2 0.95
    --attention-backend auto
    --clip-grad 1.0
    --data-path $DATA
    --eval-interval 1000
    --eval-iters 10
    --fp16
    --global-batch-size $GBS
    --hidden-size 12288
    --init-method-std 0.006
    --load $DATA
    --log-interval 100
    --lr 6.0e-5
    --lr-decay-iters 430000
    --lr-decay-style cosine
    --lr-warmup-fraction .001
)
REST=" \
    --max-position-embeddings 2048 \
    --merge-file $DATA \
    --micro-batch-size $MBS \
    --min-lr 6.0e-6 \
    --num-attention-heads 96 \
    --num-layers 96 \
    --pipeline-model-parallel-size $PP \
    --save $DATA \
    --save-interval 10000 \
    --seq-length $SEQ \
    --split 949,50,1 \
    --step-batch-size-schedule 0:16 2.4B:320 4.8B:624 7.2B:928 9.6B:1232 12B:1536 \
    --tensor-model-parallel-size $TP \
    --tensorboard-dir $DATA \
    --train-iters 500000 \
    --vocab-file $DATA \
    --weight-decay 0.1"

torchrun --nproc_per_node 8 --nnodes 1 --master_addr localhost --master_port 29500 pretrain_gpt.py \
    "${FIRST[@]}" \
    $REST
