#!/bin/bash
# The flags of Ascend/MindSpeed-LLM examples/mindspore/llama2/pretrain_llama2_7b_ms.sh, in a script of our own.
DATA=${1:-/data}
GBS=${GBS:-256}
MBS=${MBS:-1}
PP=${PP:-2}
SEQ=${SEQ:-4096}
TP=${TP:-1}

FIRST=(
    --adam-beta1 0.9
    --adam-beta2 0.95
    --ai-framework mindspore
    --attention-dropout 0.0
    --attention-softmax-in-fp32
    --bf16
    --ckpt-format torch
    --clip-grad 1.0
    --data-path your data path
    --disable-bias-linear
    --distributed-backend nccl
    --eval-interval 1000
    --eval-iters 10
    --ffn-hidden-size 11008
    --global-batch-size $GBS
    --hidden-dropout 0.0
    --hidden-size 4096
    --init-method-std 0.01
    --initial-loss-scale 65536
    --load your model ckpt path
    --log-interval 1
    --lr 1.25e-6
    --lr-decay-style cosine
    --lr-warmup-fraction 0.01
    --make-vocab-size-divisible-by 1
    --max-position-embeddings 4096
    --micro-batch-size $MBS
    --min-lr 1.25e-7
)
REST=" \
    --no-gradient-accumulation-fusion \
    --no-load-optim \
    --no-load-rng \
    --no-masked-softmax-fusion \
    --normalization RMSNorm \
    --num-attention-heads 32 \
    --num-layers 32 \
    --overlap-grad-reduce \
    --pipeline-model-parallel-size $PP \
    --position-embedding-type rope \
    --save your model save ckpt path \
    --save-interval 10000 \
    --seq-length $SEQ \
    --sequence-parallel \
    --split 949,50,1 \
    --swiglu \
    --tensor-model-parallel-size $TP \
    --tokenizer-model your tokenizer path \
    --tokenizer-type Llama2Tokenizer \
    --train-iters 5000 \
    --untie-embeddings-and-output-weights \
    --use-distributed-optimizer \
    --use-flash-attn \
    --use-fused-rmsnorm \
    --use-fused-rotary-pos-emb \
    --use-fused-swiglu \
    --use-mcore-models \
    --weight-decay 1e-1"

msrun --master_addr localhost --node_rank 0 --worker_num 8 --local_worker_num 8 --master_port 6000 --log_dir msrun_log --join False --cluster_time_out 300 --bind_core True pretrain_gpt.py \
    "${FIRST[@]}" \
    $REST
