#!/bin/bash
# The flags of Ascend/MindSpeed-LLM examples/mcore/deepseek3/pretrain_deepseek3_671b_4k_ptd.sh, in a script of our own.
DATA=${1:-/data}
GBS=${GBS:-3840}
MBS=${MBS:-1}
PP=${PP:-8}
SEQ=${SEQ:-4096}
TP=${TP:-4}

FIRST=(
    --adam-beta1 0.9
    --adam-beta2 0.999
    --attention-dropout 0.0
    --attention-softmax-in-fp32
    --beta-fast 32
    --beta-slow 1
    --bf16
    --ckpt-format torch
    --clip-grad 1.0
    --coc-fused-kernel
    --context-parallel-algo ulysses_cp_algo
    --context-parallel-size 1
    --data-path your data path
    --disable-bias-linear
    --distributed-backend nccl
    --distributed-timeout-minutes 120
    --enable-hf2mg-convert
    --eval-interval 2000
    --eval-iters 0
    --expert-model-parallel-size 32
    --expert-tensor-parallel-size 1
    --ffn-hidden-size 18432
    --first-k-dense-replace 3
    --gemm-gradient-accumulation-fusion
    --global-batch-size $GBS
    --handler-name GeneralPretrainHandler
    --hidden-dropout 0.0
    --hidden-size 7168
    --init-method-std 0.02
    --initial-loss-scale 65536
    --kv-lora-rank 512
    --load your model ckpt path
    --log-interval 1
    --lr 1.0e-5
    --lr-decay-style cosine
    --lr-warmup-iters 500
    --make-vocab-size-divisible-by 1
    --manual-gc
    --manual-gc-interval 50
    --max-position-embeddings 163840
    --micro-batch-size $MBS
    --min-lr 1.0e-7
    --mla-fa-without-pad
    --model-type-hf deepseek3
    --moe-aux-loss-coeff 0.0001
    --moe-fb-overlap
    --moe-ffn-hidden-size 2048
    --moe-grouped-gemm
    --moe-layer-freq 1
    --moe-permutation-async-comm
    --moe-permute-fusion
    --moe-router-dtype fp32
    --moe-router-enable-expert-bias
    --moe-router-group-topk 4
    --moe-router-load-balancing-type none
    --moe-router-num-groups 8
    --moe-router-score-function sigmoid
    --moe-router-topk 8
    --moe-router-topk-scaling-factor 2.5
    --moe-token-dispatcher-type alltoall
    --mtp-loss-scaling-factor 0.3
)
REST=" \
    --mtp-mem-efficient-logits \
    --mtp-num-layers 1 \
    --multi-latent-attention \
    --n-shared-experts 1 \
    --no-load-optim \
    --no-load-rng \
    --no-masked-softmax-fusion \
    --no-save-optim \
    --no-save-rng \
    --no-shared-storage \
    --noop-layers 61,62,63 \
    --norm-epsilon 1e-6 \
    --norm-topk-prob \
    --normalization RMSNorm \
    --num-attention-heads 128 \
    --num-experts 256 \
    --num-layers 64 \
    --padded-vocab-size 129280 \
    --pipeline-model-parallel-size $PP \
    --position-embedding-type rope \
    --q-lora-rank 1536 \
    --qk-head-dim 128 \
    --qk-layernorm \
    --qk-pos-emb-head-dim 64 \
    --recompute-granularity full \
    --recompute-method uniform \
    --recompute-num-layers 1 \
    --reset-attention-mask \
    --rope-scaling-factor 40 \
    --rope-scaling-mscale 1.0 \
    --rope-scaling-mscale-all-dim 1.0 \
    --rope-scaling-original-max-position-embeddings 4096 \
    --rope-scaling-type yarn \
    --rotary-base 10000 \
    --save your model save ckpt path \
    --save-interval 2000 \
    --schedules-method dualpipev \
    --seq-aux \
    --seq-length $SEQ \
    --sequence-parallel \
    --spec mindspeed_llm.tasks.models.spec.deepseek_spec layer_spec \
    --split 100,0,0 \
    --swap-optimizer \
    --swap-optimizer-times 4 \
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
    --v-head-dim 128 \
    --vocab-size 129280 \
    --weight-decay 1e-2"

torchrun --nproc_per_node 8 --nnodes 64 --node_rank 0 --master_addr localhost --master_port 6000 pretrain_gpt.py \
    "${FIRST[@]}" \
    $REST
