#!/bin/bash
# The flags of Ascend/MindSpeed-LLM examples/mcore/qwen3/pretrain_qwen3_8b_4K_ptd.sh, in a script of our own.
DATA=${1:-/data}
GBS=${GBS:-64}
MBS=${MBS:-1}
PP=${PP:-2}
SEQ=${SEQ:-4096}
TP=${TP:-1}

FIRST=(
    --adam-beta1 0.9
    --adam-beta2 0.95
    --attention-dropout 0.0
    --attention-softmax-in-fp32
    --bf16
    --ckpt-format torch
    --clip-grad 1.0
    --data-path your data path
    --disable-bias-linear
    --distributed-backend nccl
    --enable-hf2mg-convert
    --eval-interval 2000
    --eval-iters 0
    --ffn-hidden-size 12288
    --global-batch-size $GBS
    --group-query-attention
    --handler-name GeneralPretrainHandler
    --hidden-dropout 0.0
    --hidden-size 4096
    --init-method-std 0.01
    --initial-loss-scale 4096
    --load your model ckpt path
    --log-interval 1
    --lr 1.25e-6
    --lr-decay-style cosine
    --lr-warmup-fraction 0.01
    --make-vocab-size-divisible-by 1
    --max-position-embeddings 4096
    --micro-batch-size $MBS
    --min-lr 1.25e-7
    --model-type-hf qwen3
    --no-gradient-accumulation-fusion
    --no-load-optim
    --no-load-rng
    --no-masked-softmax-fusion
)
REST=" \
    --norm-epsilon 1e-6 \
    --normalization RMSNorm \
    --num-attention-heads 32 \
    --num-layers 36 \
    --num-query-groups 8 \
    --overlap-grad-reduce \
    --overlap-param-gather \
    --padded-vocab-size 151936 \
    --pipeline-model-parallel-size $PP \
    --position-embedding-type rope \
    --qk-layernorm \
    --reuse-fp32-param \
    --rotary-base 1000000 \
    --save your model save ckpt path \
    --save-interval 2000 \
    --seed 42 \
    --seq-length $SEQ \
    --spec mindspeed_llm.tasks.models.spec.qwen3_spec layer_spec \
    --split $DATA \
    --swiglu \
    --tensor-model-parallel-size $TP \
    --tokenizer-name-or-path your tokenizer path \
    --tokenizer-type PretrainedFromHF \
    --train-iters 2000 \
    --transformer-impl local \
    --untie-embeddings-and-output-weights \
    --use-ascend-coc \
    --use-distributed-optimizer \
    --use-flash-attn \
    --use-fused-rmsnorm \
    --use-fused-rotary-pos-emb \
    --use-fused-swiglu \
    --use-mcore-models \
    --use-rotary-position-embeddings \
    --weight-decay 1e-1 \
    --workers 4"

torchrun --nproc_per_node 8 --nnodes 1 --node_rank 0 --master_addr localhost --master_port 6000 pretrain_gpt.py \
    "${FIRST[@]}" \
    $REST
