"""What owners of files meet: each kind of fault that was seen in public files, with the right value, and variants."""

import pytest
from launch_sources import MODEL

from simpar import cli
from simpar.case import load_case
from simpar.errors import ScheduleError
from simpar.importing.mapping import schedule_text
from simpar.importing.read import imported
from simpar.schedule import load_schedule

SIZES = '--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 '
SIZES += '--vocab-size 32000 --hidden-dropout 0 --attention-dropout 0 --bf16 '
COMMON = f'{SIZES}--micro-batch-size 1 --global-batch-size 64 '
EIGHT = f'torchrun --nproc_per_node 8 pretrain_gpt.py {COMMON}'
SPEED = f'deepspeed --num_nodes 2 --num_gpus 8 pretrain_gpt.py --deepspeed {COMMON}'
ASCEND = f'export HCCL_CONNECT_TIMEOUT=1\n{EIGHT}'
LLAMA = '--swiglu --disable-bias-linear --position-embedding-type rope '
MIXTURE = f'{LLAMA}--num-experts 8 --moe-router-topk 2 '
_T, _E = 'workload.transformer', 'workload.transformer.experts'
FORMERS = 'type: LlamaConfig, num_layers: 80, hidden_size: 8192, num_heads: 64, n_kv_heads: 8, vocab_size: 128256'
FORMERS = f'model: {{model_config: {{{FORMERS}, seq_length: 8192, ffn_dim_multiplier: 1.3, multiple_of: 256}}}}\n'
HYDRA = 'model.num_layers=8 model.hidden_size=512 model.num_attention_heads=8 model.encoder_seq_length=512 '
HYDRA += 'model.micro_batch_size=1 model.global_batch_size=64 trainer.precision=bf16 +model.vocab_size=32000'
ARGS = ''.join(f'  --{one.strip().replace(" ", ": ", 1)}\n' for one in COMMON.split('--') if ' ' in one.strip())

# Kind, name of the file, its text, and keys of the schedule with their right values (None: it has none).
RIGHT = {
    'K1 heads of keys': ('a.sh', f'{SPEED} {LLAMA} --num-key-value-heads 8 --zero-stage 3 --normalization rmsnorm', {
        f'{_T}.kv_heads': 8, 'plan.zero': 3, f'{_T}.norm': 'rms_norm', 'plan.micro_batches': 4,
    }),
    'K1 experts': ('a.sh', f'{SPEED} {LLAMA} --num-experts 64 --moe-expert-parallel-size 16 --moe-loss-coeff 0.01', {
        'plan.expert': 16, f'{_E}.every': 2, f'{_E}.top_k': 1, f'{_E}.aux_loss': 0.01,
    }),
    'K1 top two of one interval': ('a.sh', f'{SPEED} {LLAMA} --num-experts 8 --topk 2 --expert-interval 1', {
        f'{_E}.every': 1, f'{_E}.top_k': 2, f'{_E}.aux_loss': 0.1,
    }),
    'K1 one expert': ('a.sh', f'{SPEED} --num-experts 1 --moe-expert-parallel-size 1', {f'{_E}.count': None}),
    'K1 here-document': (
        'a.sh',
        f'Z=1\ncat <<EOT > ds.json\n{{"zero_optimization": {{"stage": $Z}}}}\nEOT\n{SPEED} --deepspeed_config ds.json',
        {'plan.zero': 1},
    ),
    'K1 zero bubble': ('a.sh', f'{SPEED} --pipeline-model-parallel-size 8 --enable-zbh1-pipeline', {
        'plan.order': 'zb-h1',
    }),
    'K2 checkpoints': ('a.sh', f'{EIGHT} --checkpoint-activations --tensor-model-parallel-size 2', {
        'plan.recompute': 'full',
    }),
    'K2 checkpoints of two layers': ('a.sh', f'{SPEED} --checkpoint-activations --checkpoint-num-layers 1', {
        'plan.recompute': 'full',
    }),
    'K2 today': ('a.sh', f'{EIGHT} --recompute-activations', {'plan.recompute': 'selective'}),
    'K3 gelu': ('a.sh', f'{ASCEND} --gelu-tanh', {f'{_T}.activation': 'geglu_tanh'}),
    'K3 plain': ('a.sh', f'{ASCEND} --openai-gelu', {f'{_T}.activation': 'gelu_tanh'}),
    'K3 tiles': ('a.sh', f'{ASCEND} --tensor-model-parallel-size 4 --sequence-parallel --use-ascend-coc', {
        'plan.tiles': 1,
    }),
    'K4 ffn': ('a.yaml', f'{FORMERS}parallel_config: {{data_parallel: 1, model_parallel: 8}}', {f'{_T}.ffn': 28672}),
    'K4 without': (
        'a.yaml', f'{FORMERS.replace("ffn_dim_multiplier: 1.3", "x: false")}parallel_config: {{model_parallel: 8}}',
        {f'{_T}.ffn': 22016},
    ),
    'K5 four of each': ('a.sh', EIGHT.replace('node 8', 'node 4 --nnodes 4'), {
        'cluster.nodes': 4, 'cluster.devices': 4,
    }),
    'K5 constraint': ('a.sh', f'#SBATCH --constraint=v100-32g\n{EIGHT}', {'cluster.profile': 'v100-sxm2-8'}),
    'K5 path': ('train_8xb200.sh', EIGHT, {'cluster.profile': 'b200-sxm-8'}),
    'K5 of AMD': ('train_mi300x.sh', EIGHT, {'cluster.profile': 'mi300x-8'}),
    'K5 sixteen': ('a.sh', ASCEND.replace('node 8', 'node 16'), {'cluster.profile': 'ascend910c-16'}),
    'K6 nodes': (
        'a.sh',
        (f'#SBATCH --nodes=4\ntorchrun --nproc_per_node 8 --nnodes $SLURM_NNODES p.py {COMMON} '
        '--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2'),
        {'cluster.nodes': 4, 'plan.micro_batches': 16},
    ),
    'K10 processes of MPI': ('a.sh', f'mpirun -np 16 -N 8 -x A=1 python pretrain_gpt.py {COMMON}', {
        'cluster.nodes': 2, 'plan.micro_batches': 4,
    }),
    'K10 launchers of MPI': ('a.sh', f'mpirun -np 2 -npernode 1 bash -c "{EIGHT}"', {'cluster.nodes': 2}),
    'K13 slopes of BLOOM': ('a.sh', f'{SPEED} --embed-layernorm --position-embedding-type alibi', {
        f'{_T}.position': 'alibi', f'{_T}.embedding_norm': True,
    }),
    'K12 modules': (
        'a.sh',
        f'{EIGHT} --recompute-granularity selective --recompute-modules layernorm mlp --pipeline-model-parallel-size 2',
        {'plan.recompute': ['layer*.norm?', 'layer*[0-9].fc1', 'layer*[0-9].gelu', 'layer*[0-9].fc2']},
    ),
    'K12 account for both': (
        'a.sh',
        EIGHT.replace('--num-layers 32', '--num-layers 30') + '--pipeline-model-parallel-size 8 '
        '--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split',
        {'plan.stages': [3, 4, 4, 4, 4, 4, 4, 3]},
    ),
    'K12 selected of some stages': (
        'a.yaml',
        ('model: {model_config: {type: LlamaConfig, num_layers: 8, hidden_size: 512, num_heads: 8, vocab_size: 32000, '
        'seq_length: 512}}\nparallel_config: {model_parallel: 2, pipeline_stage: 2, micro_batch_num: 4, '
        'use_seq_parallel: true}\nrecompute_config: {recompute: [1, 0], recompute_slice_activation: true, '
        'select_recompute: {\'feed_forward\\.mul\': [3, 1], \'feed_forward\\.w1\\.activation\\.silu\': [3, 1]}}'),
        {'plan.recompute': ['layer0.*', 'layer1.swiglu', 'layer2.swiglu', 'layer4.swiglu'], 'gaps': None},
    ),
    'K12 groups of gradients': (
        'a.yaml',
        ('model: {model_config: {type: LlamaConfig, num_layers: 8, hidden_size: 512, num_heads: 8, vocab_size: 32000, '
        'seq_length: 512, tie_word_embeddings: true}}\nparallel_config: {data_parallel: 8, gradient_aggregation_group: '
        '4}'),
        {'plan.fusion_ids': [4, 1, 1, 2, 2, 3, 3, 4, 4, 4]},
    ),
    'K12 growing batch': ('a.sh', f'{EIGHT} --rampup-batch-size 16 16 9_765_625', {'workload.batch': 64, 'gaps': None}),
    'K12 batch of a schedule': (
        'a.sh', EIGHT.replace('--global-batch-size 64', '--step-batch-size-schedule 0:16 200B:32 400B:128'),
        {'workload.batch': 128, 'plan.micro_batches': 16},
    ),
    'K12 two sets of shards': (
        'a.sh',
        f'{EIGHT} --use-distributed-optimizer --num-distributed-optimizer-instances 2 --tensor-model-parallel-size 2',
        {'plan.shard_group': 2, 'gaps': None},
    ),
    'K12 spec of known layers': (
        'a.sh', f'{ASCEND} {LLAMA} --use-flash-attn --spec mindspeed_llm.tasks.models.spec.gemma2_spec layer_spec',
        {f'{_T}.post_norms': True, 'gaps': None},
    ),
    'K12 layers of chunks': (
        'a.yaml',
        (f'{FORMERS.replace("num_layers: 80", "num_layers: 8, pp_interleave_num: 2")}parallel_config: '
        '{model_parallel: 2, pipeline_stage: 2, micro_batch_num: 4}\nrecompute_config: {recompute: [[1, 0], [2, 1]]}'),
        {'plan.recompute': ['layer0.*', 'layer4.*', 'layer5.*', 'layer6.*']},
    ),
    'K17 scores of a sigmoid': (
        'a.sh', f'{EIGHT} {MIXTURE} --moe-router-score-function sigmoid --moe-router-pre-softmax',
        {f'{_E}.score': 'sigmoid', f'{_E}.normalise': None},
    ),
    'K14 capacity': (
        'a.sh',
        (f'torchrun --nnodes 2 --nproc_per_node 8 p.py {COMMON.replace("-length 4096", "-length 32768")} {LLAMA}'
        '--tensor-model-parallel-size 4 --context-parallel-size 4 --sequence-parallel --num-experts 16 '
        '--moe-router-topk 2 --moe-expert-capacity-factor 1.1'),
        {f'{_E}.capacity': (282 * 16 - 0.5) / 4096},
    ),
    'K10 here-document': (
        'a.sh',
        (f'A=( {COMMON} )\nCMD="python pretrain_gpt.py ${{A[@]}}"\nsbatch <<EOF\n#SBATCH --nodes=2 --gpus-per-node=8\n'
        'srun bash -c "${CMD}"\nEOF'),
        {'cluster.nodes': 2, f'{_T}.layers': 32},
    ),
    'K10 a job of its own': (
        'a.sh',
        ("cat > job.sh <<'EOF'\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=8\nTP=2\n"
        f'srun python pretrain_gpt.py {COMMON} --tensor-model-parallel-size $TP\nEOF\nsbatch job.sh'),
        {'cluster.nodes': 2, 'plan.tensor': 2},
    ),
    'K10 a text for another script': (
        'a.sh',
        f'opts="{COMMON} --tensor-model-parallel-size 2"\nmpirun --hostfile h bash entry.sh "${{opts}}"',
        {f'{_T}.layers': 32, 'plan.tensor': 2},
    ),
    'K10 arrays alone': (
        'a.sh', f'MODEL_ARGS=( {SIZES} )\nOTHER=(--micro-batch-size 1 --global-batch-size 64)\nexport MODEL_ARGS',
        {f'{_T}.layers': 32, 'workload.batch': 64},
    ),
    'K10 an exported text': ('a.sh', f'export FLAGS="{COMMON}"\nbash run_on_all_nodes.sh', {f'{_T}.layers': 32}),
    'K11 a question in a sum': (
        'a.sh',
        ('TP=4\nO="--overlap-grad-reduce"; X=$(( ($TP > 1) ? 1 : 0 )); if [ $X -eq 1 ]; '
        f'then O="--tp-comm-overlap $O"; fi\n{EIGHT} --sequence-parallel --tensor-model-parallel-size $TP $O'),
        {'plan.tiles': 4, 'plan.reduce_gradients': 'overlapped'},
    ),
    'K11 a condition on numbers': (
        'a.sh',
        f'TP=4\nif (( TP > 1 && TP < 8 )); then S=--sequence-parallel; fi\n{EIGHT} --tensor-model-parallel-size $TP $S',
        {'plan.sequence_parallel': True},
    ),
    'K11 a branch not taken': (
        'a.sh',
        ('TP=1\nON=true\nif [ $TP -gt 1 ]; then sp="--sequence-parallel"; elif [ $ON = false ]; then sp=""; fi\n'
        f'{EIGHT} $sp'),
        {'plan.sequence_parallel': None},
    ),
    'K11 a function with arguments': (
        'a.sh', f'go() {{\n  {EIGHT.replace("-layers 32", "-layers $1")} --tensor-model-parallel-size $2\n}}\ngo 16 2',
        {f'{_T}.layers': 16, 'plan.tensor': 2},
    ),
    'K11 another language': (
        'a.sh', f"python -c \"h=1; print(f'{{(12 * h**2) / 10**9 :.0f}}B')\"\n{EIGHT}", {f'{_T}.layers': 32},
    ),
    'K8 GPT-NeoX': (
        'a.yml',
        ('{"pipe_parallel_size": 1, "model_parallel_size": 8, "num_layers": 80, "hidden_size": 8192, '
        '"norm": "rmsnorm", "num_attention_heads": 64, "seq_length": 4096, "max_position_embeddings": 4096, '
        '"pos_emb": "rotary", "train_micro_batch_size_per_gpu": 1, '
        '"gradient_accumulation_steps": 4, "zero_optimization": {"stage": 1}, '
        '"checkpoint_activations": true, "fp16": {"enabled": true}, "vocab_size": 50432, '
        '"partition-activations": false}'),
        {
            'plan.tensor': 8, 'plan.zero': 1, 'workload.batch': 4, 'plan.micro_batches': 4, 'plan.recompute': 'full',
            f'{_T}.norm': 'rms_norm', f'{_T}.position': 'rotary', 'workload.precision': 'fp16', 'gaps': None,
        },
    ),
    'K8 GPT-NeoX with a gate': (
        'a.yml',
        ('{"model_parallel_size": 1, "num_layers": 32, "hidden_size": 4096, "intermediate_size": 32768, '
        '"norm": "rmsnorm", '
        '"num_attention_heads": 32, "seq_length": 4096, "max_position_embeddings": 4096, "pos_emb": "rotary", '
        '"activation": "swiglu", "mlp_multiple_of": 256, "use_bias_in_attn_linear": false, "no_weight_tying": true, '
        '"attention_config": [[["flash"], 32]], "vocab_size": 32000, "precision": "bfloat16", '
        '"train_micro_batch_size_per_gpu": 1}'),
        {
            # The width of Llama 2 7B, whose configuration of GPT-NeoX has 32768.
            f'{_T}.ffn': 11008, f'{_T}.bias': ['ffn'], f'{_T}.attention': 'flash', 'workload.precision': 'bf16',
            'workload.batch': 8, 'gaps': None,
        },
    ),
    'K1 embedding and head count': (
        'a.sh',
        (f'{SPEED.replace("--num-layers 32", "--num-layers 30")} --pipeline-model-parallel-size 8 '
        '--pp-partition-method "type:transformer|embedding"'),
        {'plan.stages': [3, 4, 4, 4, 4, 4, 4, 3]},
    ),
    'K8 NeMo': (
        'a.yaml',
        ('trainer: {num_nodes: 2, devices: 8, precision: bf16}\nexp_manager: {name: x}\nmodel: {num_layers: 16, '
        'hidden_size: 1024, num_attention_heads: 16, encoder_seq_length: 2048, max_position_embeddings: 2048, '
        'micro_batch_size: 2, global_batch_size: 128, tensor_model_parallel_size: 4, pipeline_model_parallel_size: 2, '
        'virtual_pipeline_model_parallel_size: null, bias: false, activation: fast-swiglu, ffn_hidden_size: 2816, '
        'normalization: rmsnorm, position_embedding_type: rope, num_query_groups: 4, fp8: false, fp8_hybrid: true, '
        'activations_checkpoint_granularity: full, share_embeddings_and_output_weights: false, '
        'sequence_parallel: true, '
        'tokenizer: {type: GPT2BPETokenizer}, optim: {name: distributed_fused_adam, lr: 1e-4}}'),
        {
            'cluster.nodes': 2, 'plan.tensor': 4, 'plan.pipeline': 2, 'plan.zero': 1, 'plan.micro_batches': 32,
            f'{_T}.bias': [], f'{_T}.activation': 'swiglu', f'{_T}.kv_heads': 4, 'workload.fp8': None,
            'plan.recompute': 'full', f'{_T}.tied': False, f'{_T}.vocab': 50257, 'plan.sequence_parallel': True,
            'gaps': None,
        },
    ),
    'K8 one group of NeMo': (
        'a.sh', f'torchrun --nproc_per_node 8 megatron_gpt_pretraining.py {HYDRA} model.num_query_groups=1',
        {f'{_T}.kv_heads': 1},
    ),
    'K8 overrides of NeMo': (
        'a.sh',
        f'torchrun --nproc_per_node 8 megatron_gpt_pretraining.py {HYDRA} ++model.tensor_model_parallel_size=2',
        {f'{_T}.layers': 8, 'plan.tensor': 2, 'workload.precision': 'bf16', 'workload.batch': 64},
    ),
    'K8 arguments of tests': (
        'a.yaml',
        (f'ENV_VARS: {{CUDA_DEVICE_MAX_CONNECTIONS: 1, NCCL_ALGO: Ring}}\nMODEL_ARGS:\n{ARGS}  --bf16: true\n'
        '  --tensor-model-parallel-size: 2\n  --swiglu: false\n'),
        {'plan.tensor': 2, f'{_T}.layers': 32, 'cluster.work_queues': 1, f'{_T}.activation': None, 'gaps': None},
    ),
    'K8 Megatron-Bridge': (
        'a.yaml',
        ('model: {num_layers: 8, hidden_size: 512, num_attention_heads: 8, seq_length: 1024, vocab_size: 32000, '
        'tensor_model_parallel_size: 2, add_bias_linear: false, gated_linear_unit: true, ffn_hidden_size: 1408, '
        'normalization: RMSNorm, position_embedding_type: rope, num_query_groups: 2, hidden_dropout: 0.0, '
        'attention_dropout: 0.0}\ntrain: {global_batch_size: 32, micro_batch_size: 1, train_iters: 5}\n'
        'ddp: {use_distributed_optimizer: true, overlap_grad_reduce: true}\nmixed_precision: bf16_mixed\n'),
        {
            'plan.zero': 1, 'plan.reduce_gradients': 'overlapped', f'{_T}.kv_heads': 2, 'workload.precision': 'bf16',
            'plan.micro_batches': 8, f'{_T}.activation': 'swiglu',
        },
    ),
    'K8 Primus': (
        'a.yaml',
        ('modules: {pre_trainer: {framework: megatron, config: pre_trainer.yaml, overrides: {num_layers: 8, '
        'hidden_size: 512, num_attention_heads: 8, seq_length: "${LENGTH:1024}", micro_batch_size: "${MBS:2}", '
        'global_batch_size: 64, vocab_size: 32000, position_embedding_type: rope, normalization: RMSNorm}}}'),
        {f'{_T}.sequence': 1024, 'plan.micro_batches': 4, 'workload.precision': 'bf16', 'plan.zero': 1},
    ),
    'K8 torchtitan overrides': (
        'a.sh',
        ('torchrun --nproc_per_node 8 --nnodes 2 -m torchtitan.train --model.name llama3 --model.flavor 8B '
        '--training.local_batch_size 1 --training.seq_len 1024 --parallelism.tensor_parallel_degree=2'),
        {'plan.tensor': 2, 'workload.batch': 8, 'cluster.nodes': 2, 'plan.zero': 3},
    ),
    'activations over a granularity': (
        'a.sh',
        (f'{EIGHT} --recompute-activations --recompute-granularity full --recompute-method uniform '
        '--recompute-num-layers 1'),
        {'plan.recompute': 'selective'},
    ),
    'sums in bf16 over those in fp32': (
        'a.sh', f'{EIGHT} --grad-reduce-in-bf16 --accumulate-allreduce-grads-in-fp32', {'workload.gradients': 'bf16'},
    ),
    'K12 blocks beside idle layers': (
        'a.sh', (f'{ASCEND} --pipeline-model-parallel-size 4 --noop-layers 0,9 --recompute-granularity full '
        '--recompute-method block --recompute-num-layers 2'),
        {
            f'{_T}.layers': 30, 'plan.stages': [7, 7, 8, 8], 'gaps': None,
            'plan.recompute': [f'layer{layer}.*' for layer in (0, 7, 14, 15, 22, 23)],
        },
    ),
    'K12 a list of layers': (
        'a.sh', f'{ASCEND} --pipeline-model-parallel-size 4 --num-layer-list 7,8,9,8', {'plan.stages': [7, 8, 9, 8]},
    ),
    'K8 weights of NeMo that are cast': (
        'a.sh', f'torchrun --nproc_per_node 8 megatron_gpt_pretraining.py {HYDRA} model.megatron_amp_O2=false',
        {'gaps': ['model.megatron_amp_O2 false (weights in fp32, which are cast for each product)']},
    ),
    'context ranks of torchtitan hold shards': (
        'a.toml', ('# preset for 16 GPUs\n[model]\nname = "llama3"\nflavor = "debugmodel"\n[parallelism]\n'
        'data_parallel_replicate_degree = 2\ndata_parallel_shard_degree = 4\ncontext_parallel_degree = 2\n'
        '[training]\nseq_len = 64'),
        {'plan.shard_group': 8, 'plan.zero': 3, 'plan.context': 2, 'workload.batch': 64},
    ),
    'off is no alarm': (
        'a.sh', f'{EIGHT} --mtp-num-layers 0 --cpu-offloading-num-layers 0 --softmax-type vanilla --a-mlp false',
        {'gaps': None},
    ),
}  # fmt: skip


ALONE = ('K10 a text for another script', 'K10 arrays alone', 'K10 an exported text', 'K8 GPT-NeoX',
         'K8 GPT-NeoX with a gate',
         'K8 arguments of tests', 'K8 Megatron-Bridge', 'K8 Primus')  # fmt: skip
GIVEN = dict.fromkeys(ALONE, 8)
"""Devices of files that do not say them."""


def made_of(tmp_path, name, text, devices=0):
    path = tmp_path / name
    path.write_text(f'{text}\n', encoding='utf-8')
    given = {'nnodes': '1', 'nproc-per-node': str(devices)} if devices else {}
    return imported(path, given=given, model=str(MODEL) if name.endswith('.json') else '')


@pytest.mark.parametrize('case', RIGHT)
def test_a_file_comes_to_the_right_values_and_its_schedule_is_lowered(case, tmp_path):
    name, text, right = RIGHT[case]
    made = made_of(tmp_path, name, text, GIVEN.get(case, 0))
    assert {key: made.values.get(key) for key in right} == right
    assert load_case(schedule_text(made, name)).program


# What shapes a model or a plan and is not understood, with words that the error has.
REFUSED = {
    'K7 tensor ranks hold experts': (
        'a.sh', (f'{EIGHT} {MIXTURE} --tensor-model-parallel-size 4 --sequence-parallel '
        '--expert-model-parallel-size 8 --expert-tensor-parallel-size 1'), '--set expert-model-parallel-size=2',
    ),
    'K7 experts split otherwise': (
        'a.sh', (f'{EIGHT} {MIXTURE} --tensor-model-parallel-size 2 --expert-model-parallel-size 4 '
        '--expert-tensor-parallel-size 1'), '--set expert-tensor-parallel-size=2',
    ),
    'K12 further tokens': ('a.sh', f'{EIGHT} --mtp-num-layers 1', '--set mtp-num-layers=false'),
    'K15 a template': ('a.json', '{"train_batch_size": 64, "fp16": {"enabled": "CONFIG_FP16"}}', 'neither on nor off'),
    'K15 a number': ('a.json', '{"train_batch_size": "CONFIG_BATCH"}', 'not a number'),
    'K17 linear attention': ('a.sh', f'{ASCEND} --full-attention-interval 4', 'linear attention'),
    'K17 adapters': ('a.sh', f'{ASCEND} --lora-r 16', 'adapters'),
    'K17 sinks': ('a.sh', f'{EIGHT} --softmax-type learnable', 'sinks'),
    'K17 another loss': ('a.sh', f'{ASCEND} --stage dpo', 'another loss'),
    'K17 an encoder': ('a.sh', EIGHT.replace('_gpt', '_t5'), 'an encoder and a decoder'),
    'K8 adapters of LLaMA-Factory': ('a.yaml', 'stage: sft\nfinetuning_type: lora\n', 'adapters'),
    'K8 another launcher': ('a.yaml', 'base_model: x\nsample_packing: true\n', "axolotl's, which is not read"),
    'K8 no launcher': ('a.yaml', 'rows: 3\n', 'files are read of Megatron-LM'),
    'K9 Python': ('config_registry.py', 'def llama3_8b():\n    return Trainer.Config(model=1)', 'is not run'),
    'K9 Python without its ending': ('train', '# of torch\nimport torch\n', '--module (torch)'),
    'K1 an unknown degree': ('a.sh', f'{EIGHT} --lab-parallel-size 4', '--set lab-parallel-size=false leaves it out'),
    'two precisions': ('a.sh', f'{EIGHT} --fp16', '--fp16: never beside --bf16'),
    'two ways to say chunks': (
        'a.sh', (f'{EIGHT} --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 2 '
        '--num-virtual-stages-per-pipeline-rank 4'), 'never beside --num-virtual-stages-per-pipeline-rank',
    ),
    'one setting by two names': ('a.sh', f'{EIGHT} --encoder-num-layers 16', '--num-layers is 32'),
    'gathers without sums': (
        'a.sh', f'{EIGHT} --use-distributed-optimizer --overlap-param-gather', '--set overlap-grad-reduce=true',
    ),
    'two precisions of DeepSpeed': (
        'a.json', '{"bf16": {"enabled": true}, "fp16": {"enabled": true}}', 'never beside fp16.enabled',
    ),
    'a product of batches': (
        'a.yml', ('{"pipe_parallel_size": 1, "num_layers": 8, "hidden_size": 512, "num_attention_heads": 8, '
        '"seq_length": 512, "max_position_embeddings": 512, "global_num_gpus": 8, "train_batch_size": 64, '
        '"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1, "vocab_size": 32000}'),
        '4 samples × 1 × 8 data ranks are not the batch of 64',
    ),
    'devices and degrees of torchtitan': (
        'a.toml', ('[model]\nname = "llama3"\nflavor = "8B"\n[parallelism]\ndata_parallel_shard_degree = 4\n'
        '# preset for 16 H100 GPUs'), 'the degrees of the file come to 4',
    ),
    'fewer micro-batches than stages': (
        'a.yaml', f'{FORMERS}parallel_config: {{pipeline_stage: 8, micro_batch_num: 4}}', 'less than the 8 stages',
    ),
    'degrees on one device': (
        'a.yaml', f'{FORMERS}use_parallel: false\nparallel_config: {{data_parallel: 8}}', 'one device is taken',
    ),
    'degrees of data alone': (
        'a.yaml', f'{FORMERS}parallel: {{parallel_mode: 0}}\nparallel_config: {{model_parallel: 8}}',
        '--set parallel.parallel_mode=1',
    ),
    'devices and degrees of MindFormers': (
        'a.yaml', f'{FORMERS}device_num: 16\nparallel_config: {{model_parallel: 8}}', '--set device_num=8',
    ),
    'devices and degrees of DeepSpeed': (
        'a.json', '{"train_batch_size": 8, "devices": 8, "tensor_parallel": {"autotp_size": 3}}',
        '2 more than groups of 3 ranks',
    ),
    'two ways of FSDP': (
        'a.yaml', ('distributed_type: FSDP\nnum_processes: 8\nfsdp_config: {fsdp_sharding_strategy: FULL_SHARD, '
        'fsdp_reshard_after_forward: false}\n'), 'another than fsdp_config.fsdp_sharding_strategy: FULL_SHARD',
    ),
    '8 bits of Accelerate': ('a.yaml', 'distributed_type: FSDP\nmixed_precision: fp8\n', "not modelled (got 'fp8')"),
    'K1 unknown experts': ('a.yaml', f'{FORMERS}moe_args: {{expert_count: 8}}\nparallel_config: {{}}', 'experts'),
}  # fmt: skip


@pytest.mark.parametrize('case', REFUSED)
def test_what_shapes_a_model_or_a_plan_and_is_not_understood_ends_the_import(case, tmp_path):
    name, text, said = REFUSED[case]
    with pytest.raises(ScheduleError) as error:
        made_of(tmp_path, name, text)
    assert said in str(error.value)


BESIDE = {
    # What shards a model that is given: files, and keys of their plan.
    'distributed_type: FSDP\nfsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: true}\nnum_processes: 16\n'
    'mixed_precision: bf16\n': {'plan.zero': 3, 'workload.precision': 'bf16', 'cluster.nodes': 2},
    'distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: SHARD_GRAD_OP, '
    'fsdp_activation_checkpointing: true}\nnum_processes: 8\n': {
        'plan.zero': 2, 'plan.recompute': 'full', 'workload.precision': 'fp32',
    },
    'distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3, gradient_accumulation_steps: 2}\nnum_processes: 8\n'
    'mixed_precision: bf16\n': {'plan.zero': 3, 'plan.micro_batches': 2},
    'model_name_or_path: x\nstage: sft\nfinetuning_type: full\ndeepspeed: examples/ds_z3_config.json\nbf16: true\n'
    'cutoff_len: 1024\nper_device_train_batch_size: 2\ndevices: 8\n': {
        'plan.zero': 3, 'workload.sequence': 1024, 'workload.batch': 16, 'plan.recompute': 'full',
        'workload.clip_norm': 1.0,
    },
}  # fmt: skip


@pytest.mark.parametrize('text', BESIDE)
def test_a_file_without_a_model_says_the_plan_of_one_that_is_given(text, tmp_path):
    (tmp_path / 'a.yaml').write_text(text)
    made = imported(tmp_path / 'a.yaml', given={}, model=str(MODEL))
    assert {key: made.values.get(key) for key in BESIDE[text]} == BESIDE[text]
    assert load_case(schedule_text(made, 'a.yaml')).program


OWN = 'model_name_or_path: x\nstage: sft\nfinetuning_type: full\ndeepspeed: ds.json\nbf16: true\ncutoff_len: 1024\n'
OWN += 'devices: 8\n'
SPEEDY = 'distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config: {deepspeed_config_file: ds.json'
ZERO = '"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": "auto"}'
AUTO = '"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", '
AUTO = f'{{{AUTO}"gradient_clipping": "auto", "bf16": {{"enabled": "auto"}}, {ZERO}}}'
_SHAPE = ('plan.micro_batches', 'workload.batch', 'workload.precision', 'plan.zero', 'plan.shard_threshold')
# A configuration, the DeepSpeed file that it names, and what both come to: huggingface/transformers 02348331be,
# integrations/deepspeed.py, fills auto in (10 × hidden numbers of 2 bytes stay whole) and takes no other difference.
AGREED = {
    'auto is what the configuration says': (
        f'{OWN}per_device_train_batch_size: 2\ngradient_accumulation_steps: 4\n', AUTO, (4, 64, 'bf16', 3, '81.92 KB'),
    ),
    'auto is the default of the trainer': (OWN, AUTO, (1, 64, 'bf16', 3, '81.92 KB')),
    'both say the same': (
        f'{OWN}per_device_train_batch_size: 2\n',
        f'{{"train_micro_batch_size_per_gpu": 2, "train_batch_size": 16, {ZERO}}}', (1, 16, 'bf16', 3, '81.92 KB'),
    ),
    'Accelerate takes all of the file': (
        f'{SPEEDY}}}\n',
        (f'{{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, {ZERO}, '
        '"bf16": {"enabled": true}}'),
        (2, 32, 'bf16', 3, '81.92 KB'),
    ),
    'Accelerate has stage 2 of itself': (
        ('distributed_type: DEEPSPEED\nnum_processes: 8\nmixed_precision: bf16\ndeepspeed_config: {zero3_init_flag: '
        'false}\n'),
        '{}', (1, 8, 'bf16', 2, None),
    ),
    'weights in bf16 alone beside DeepSpeed are told': (
        f'{OWN}pure_bf16: true\n'.replace('\nbf16: true', ''), AUTO.replace('stage": 3', 'stage": 1'),
        (1, 64, 'bf16', 1, None),
    ),
    'what is DeepSpeed\'s counts there alone': (
        f'{SPEEDY}, zero_stage: 3}}\nmixed_precision: bf16\n'.replace('DEEPSPEED', 'MULTI_GPU'), f'{{{ZERO}}}',
        (1, 8, 'bf16', None, None),
    ),
}  # fmt: skip


@pytest.mark.parametrize('case', AGREED)
def test_a_configuration_and_its_deepspeed_file_come_to_what_the_trainer_takes(case, tmp_path):
    own, beside, right = AGREED[case]
    (tmp_path / 'a.yaml').write_text(own)
    (tmp_path / 'ds.json').write_text(beside)
    made = imported(tmp_path / 'a.yaml', given={}, model=str(MODEL))
    assert tuple(made.values.get(key) for key in _SHAPE) == right


FOUR = f'{OWN}gradient_accumulation_steps: 4\n'
OF_JSON = f'{SPEED} --zero-stage 1 --deepspeed_config ds.json'
# What contradicts, and the two places that the error names.
CONTRADICTED = {
    'samples': ('a.yaml', f'{OWN}per_device_train_batch_size: 2\n', AUTO.replace('per_gpu": "auto', 'per_gpu": "4'),
                ('ds.json:1', '2 (', 'a.yaml:8')),
    'a default': ('a.yaml', OWN, AUTO.replace('steps": "auto', 'steps": "4'), ('ds.json:1', 'is 1 (', 'its default')),
    'micro-batches': ('a.yaml', FOUR, AUTO.replace('steps": "auto', 'steps": "2'), ('ds.json:1', 'is 4 (', 'a.yaml:8')),
    'precision': ('a.yaml', OWN, AUTO.replace('"auto"}', 'false}', 1), ('ds.json:1', 'is true (', 'a.yaml:5')),
    'norms': ('a.yaml', f'{OWN}max_grad_norm: 0.5\n', AUTO.replace('clipping": "auto', 'clipping": "1'),
              ('ds.json:1', 'is 0.5 (', 'a.yaml:8')),
    'a batch': ('a.yaml', OWN, AUTO.replace('"train_batch_size": "auto"', '"train_batch_size": 256'),
                ('ds.json:1', '8 samples × 1 micro-batches × 8 data ranks are 64 (got 256)')),
    'Accelerate': ('a.yaml', f'{SPEEDY}, zero_stage: 2}}\nmixed_precision: bf16\n', f'{{{ZERO}}}',
                   ('a.yaml:3: deepspeed_config.zero_stage', 'a.yaml:4: mixed_precision')),
    'no file': ('a.yaml', f'{SPEEDY}}}\n'.replace('ds.json', 'other.json'), '', ('other.json is not here',)),
    'a stage': ('a.sh', OF_JSON, '{"zero_optimization": {"stage": 2}}', ('a.sh:1', '2 (', 'ds.json:1')),
    'samples of flags': ('a.sh', OF_JSON, '{"train_micro_batch_size_per_gpu": 2}', ('a.sh:1', 'is 2 (', 'ds.json:1')),
    'precision of flags': ('a.sh', OF_JSON, '{"fp16": {"enabled": true}}', ('a.sh:1', 'ds.json:1', 'never beside')),
    'a here-document': (
        'a.sh', f'MB=2\ncat <<EOT > x.json\n{{"train_micro_batch_size_per_gpu": $MB}}\nEOT\n{OF_JSON}', '{}',
        ('a.sh:5', 'is 2 (', 'a.sh:3'),
    ),
}  # fmt: skip


@pytest.mark.parametrize('case', CONTRADICTED)
def test_two_files_that_contradict_are_refused_with_the_lines_of_both(case, tmp_path):
    name, text, beside, told = CONTRADICTED[case]
    (tmp_path / name).write_text(f'{text}\n')
    (tmp_path / 'ds.json').write_text(beside or '{}')
    with pytest.raises(ScheduleError) as error:
        imported(tmp_path / name, given={}, model=str(MODEL) if name == 'a.yaml' else '')
    assert all(word in str(error.value) for word in told), str(error.value)


def test_a_deepspeed_file_without_micro_batches_is_told(tmp_path):
    (tmp_path / 'a.yaml').write_text(FOUR)
    (tmp_path / 'ds.json').write_text(f'{{{ZERO}}}')
    made = imported(tmp_path / 'a.yaml', given={}, model=str(MODEL))
    assert any('takes 1 then' in one for one in made.assumed)


def test_a_file_of_deepspeed_beside_a_script_says_the_stage_of_zero(tmp_path):
    (tmp_path / 'ds.json').write_text('{"zero_optimization": {"stage": 2}}')
    made = made_of(tmp_path, 'a.sh', f'{SPEED} --deepspeed_config configs/ds.json')
    assert made.values['plan.zero'] == 2
    assert not any('is not here' in one for one in made.assumed)


def test_a_script_that_sources_another_has_its_variables(tmp_path):
    (tmp_path / 'sizes.sh').write_text('TP=4\nSIZES=(--num-layers 8)\n')
    text = f'source "$(dirname "$0")/sizes.sh"\n{EIGHT} "${{SIZES[@]}}" --tensor-model-parallel-size $TP'
    (tmp_path / 'run.sh').write_text(text)
    values = imported(tmp_path / 'run.sh', given={}).values
    assert (values['plan.tensor'], values[f'{_T}.layers']) == (4, 8)


def test_arguments_of_a_script_stand_behind_two_dashes(tmp_path, capsys):
    text = 'TP=${10}\nif [ $2 = 8B ]; then LAYERS=32; elif [ $2 = 70B ]; then LAYERS=80; fi\n'
    text += f'{EIGHT.replace("-layers 32", "-layers $LAYERS")} --tensor-model-parallel-size $TP\n'
    (tmp_path / 'a.sh').write_text(text)
    assert cli.main(['import', str(tmp_path / 'a.sh')]) == 2
    told = capsys.readouterr().err
    assert '--num-layers: $2 is not assigned; give it: --set 2=…, or all arguments of the script behind --' in told
    words = ['import', str(tmp_path / 'a.sh'), '--', 'dsw', '8B', *'3456789', '4']
    assert cli.main(words) == 0
    written = capsys.readouterr().out
    assert '  layers: 32 ' in written
    assert '  tensor: 4 ' in written


def test_gaps_go_with_the_schedule_into_its_answer(tmp_path, capsys):
    small = EIGHT.replace('32 --hidden', '2 --hidden').replace('4096', '64')
    (tmp_path / 'a.sh').write_text(f'{small} --cpu-offloading --frobnicate 3\n')
    out = tmp_path / 'a.yaml'
    assert cli.main(['import', str(tmp_path / 'a.sh'), '--output', str(out)]) == 0
    gaps = ('--cpu-offloading (offloading to host memory)', '--frobnicate 3')
    assert load_schedule(out).gaps == gaps
    capsys.readouterr()
    assert cli.main(['run', str(out)]) == 0
    assert f'does not model (gaps): {", ".join(gaps)}.' in ' '.join(capsys.readouterr().out.split())


def test_what_cannot_be_lowered_is_told_by_the_import(tmp_path, capsys):
    """The schema takes 8 ranks that share 8 experts; 4 data ranks are no multiple of it."""
    (tmp_path / 'a.sh').write_text(f'{EIGHT} {MIXTURE} --tensor-model-parallel-size 2')
    assert cli.main(['import', str(tmp_path / 'a.sh'), '--set', 'plan.expert=8']) == 2
    assert 'a.sh: the schedule that it comes to cannot be: ' in capsys.readouterr().err


def test_a_path_that_names_an_accelerator_without_a_profile_is_told_first(tmp_path):
    made = made_of(tmp_path, 'train_mi250x.sh', EIGHT)
    said = 'h100-sxm-8: the file names mi250x, and no profile is of it; --cluster says another'
    assert made.assumed[0] == said
    assert 'the path of the file says b200' in made_of(tmp_path, '8xb200.sh', EIGHT).assumed[0]
