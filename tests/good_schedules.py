"""Two good schedules that tests read, change and break."""

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
