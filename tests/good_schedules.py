"""Good schedules that tests read, change and break."""

TRANSFORMER = """\
simpar: 1
cluster: ascend910a-8
workload:
  transformer: {layers: 32, hidden: 2560, heads: 32, ffn: 10240, vocab: 40000, sequence: 1024}
  batch: 32
  precision: fp16
plan: {data: 2, tensor: 4, copies: 2}
"""
NETWORK = """\
simpar: 1
cluster: {profile: h100-sxm-8, nodes: 2, slow: {3: 0.9}, devices: 4}
workload:
  network:
    - flatten: {}
    - dense: {name: matmul, in: 784, out: 512, bias: false}
    - relu: {}
    - dense: {in: 512, out: 10}
  batch: 32
  loss: cross-entropy
  data: mnist
  optimizer: {adam: {learning_rate: 0.001}}
plan: {tensor: 4, copies: 4}
against:
  plan.copies: 2
"""
GRAPH = """\
simpar: 1
cluster: h100-sxm-8
workload:
  network:
    input: [8]
    layers:
      - embedding: {vocab: 32, width: 16, name: words, strategy: [[4, 1], [2, 1]]}
      - reshape: {shape: [-1, 16], name: rows}
      - layer_norm: {strategy: [[8, 1], [1], [1]], recompute: true}
      - dense: {in: 16, out: 16, name: q, strategy: [[2, 1], [1, 4]]}
      - reshape: {shape: [-1, 8, 4, 4]}
      - transpose: {permutation: [0, 2, 1, 3], name: heads, strategy: [[2, 1, 4, 1]]}
      - matmul: {of: [heads, heads], transpose_b: true, strategy: [[2, 4, 1, 1], [2, 4, 1, 1]]}
      - mul: {factor: 0.5}
      - softmax: {strategy: [[2, 4, 1, 1]]}
      - matmul: {of: [softmax0, heads]}
      - transpose: {permutation: [0, 2, 1, 3]}
      - reshape: {shape: [-1, 16]}
      - dense: {in: 16, out: 16, bias: false, name: proj, strategy: [[2, 4], [4, 1]]}
      - add: {of: [rows, proj], name: sum, strategy: [[8, 1], [8, 1]]}
      - gelu: {strategy: [[2, 4]]}
      - relu: {of: sum}
      - add: {of: [gelu0, relu0]}
  batch: 16
plan: {micro_batches: 2}
"""
