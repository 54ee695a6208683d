torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 16 \
  --max-position-embeddings 16 --vocab-size 128 --micro-batch-size 1 --global-batch-size 8 --bf16 --final-logit-softcapping 30
