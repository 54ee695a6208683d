"""A first schedule for a model on some devices: what fits by its weights, with a comment on every choice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from simpar.hardware import Profile
from simpar.importing.write import yaml_of

SHARE: Final = 0.85
"""Of a device's memory, what the estimate may take: it leaves out buffers and fragments."""
BYTES: Final = {'weights': 2, 'gradients': 4, 'states': 12}
"""Of a weight: bf16; fp32 sums; fp32 weight and two moments of Adam."""


class Degrees(NamedTuple):
    """Ranks of each kind, the stage of ZeRO, what is recomputed, and data ranks that share experts."""

    data: int
    tensor: int
    pipeline: int
    zero: int
    recompute: str
    expert: int = 1


def weights_of(sizes: Mapping[str, Any]) -> tuple[int, int]:
    """About how many weights a model has outside of its experts, and in them: of products, head and embedding."""
    hidden, layers = sizes['hidden'], sizes['layers']
    gated = 3 if sizes.get('activation', 'gelu').endswith('glu') else 2
    ffn = sizes.get('ffn') or 4 * hidden
    experts = sizes.get('experts') or {}
    sparse = layers - experts.get('first_dense', 0) if experts else 0
    shared = experts.get('shared', 0) or 0
    dense = layers * _attention(sizes) + gated * hidden * ((layers - sparse) * ffn + sparse * shared)
    in_experts = sparse * experts.get('count', 0) * gated * hidden * (experts.get('ffn') or ffn)
    return int(dense + (1 if sizes.get('tied') else 2) * sizes['vocab'] * hidden), int(in_experts)


def _attention(sizes: Mapping[str, Any]) -> int:
    """Weights of the attention of a layer."""
    hidden, heads = sizes['hidden'], sizes['heads']
    latent = sizes.get('kv_lora_rank')
    if not latent:
        head = sizes.get('head_dim') or hidden // heads
        return int(hidden * head * 2 * (heads + (sizes.get('kv_heads') or heads)))
    queries, keys = (sizes[f'qk_{kind}_head_dim'] for kind in ('nope', 'rope'))
    values, rank = sizes['v_head_dim'], sizes.get('q_lora_rank')
    to_queries = rank * (hidden + heads * (queries + keys)) if rank else hidden * heads * (queries + keys)
    return int(to_queries + hidden * (latent + keys) + latent * heads * (queries + values) + heads * values * hidden)


def degrees(sizes: Mapping[str, Any], ranks: int, node: int, memory: float, batch: int) -> Degrees:
    """The least degrees with which one sample a micro-batch fits, attention recomputed, or else full layers.

    Arguments: ``ranks`` in all, ``node`` of them in one; ``memory`` of a device in bytes; ``batch``, a multiple
    of data.
    """
    heads = sizes.get('kv_heads') or sizes['heads']
    tensors = [one for one in range(1, node + 1) if heads % one == 0 and node % one == 0]
    pipelines = [one for one in range(1, sizes['layers'] + 1) if ranks % one == 0]
    count = (sizes.get('experts') or {}).get('count', 1)
    shapes = [
        Degrees(ranks // (tensor * pipeline), tensor, pipeline, zero, recompute, expert)
        for recompute in ('selective', 'full')
        for pipeline in pipelines
        for tensor in tensors
        for expert in range(min(count, node), 0, -1)
        for zero in (1, 3)
        if ranks % (tensor * pipeline) == 0 and batch % (ranks // (tensor * pipeline)) == 0
        if count % expert == 0 and ranks // (tensor * pipeline) % expert == 0
    ]
    fitting = (one for one in shapes if held(sizes, one) <= SHARE * memory)
    chosen = next(fitting, min(shapes, key=lambda one: held(sizes, one), default=Degrees(ranks, 1, 1, 3, 'full')))
    return chosen if chosen.data > 1 else chosen._replace(zero=0)


def held(sizes: Mapping[str, Any], plan: Degrees) -> float:
    """About how many bytes a rank holds: weights, states, and activations of one sample for each stage ahead.

    A layer keeps 34 · sequence · hidden bytes in 16 bits, or 2 where it is recomputed (Korthikanti et al. 2022).
    Experts keep what goes in and out of their products, for each of the ``top_k`` that a token has.
    """
    all_of = sum(BYTES.values())
    sharded = BYTES['states'] if plan.zero == 1 else all_of
    dense, experts = (weights / plan.tensor for weights in weights_of(sizes))
    experts /= plan.expert
    share = -(-sizes['layers'] // plan.pipeline) / sizes['layers']
    weights = dense * (all_of - sharded + sharded / plan.data)
    weights += experts * (all_of - sharded + sharded * plan.expert / plan.data)
    # Of sharded weights, those of two layers are gathered at a time, and the gradients of one.
    gathered = (
        (2 * BYTES['weights'] + BYTES['gradients']) * (dense + experts) / sizes['layers'] if plan.zero == 3 else 0
    )
    tokens = sizes['sequence'] / plan.tensor
    layer = tokens * (34 * sizes['hidden'] + _kept_by_experts(sizes))
    kept = layer if plan.recompute == 'selective' else 2 * tokens * sizes['hidden']
    return float(
        weights * share
        + gathered
        + kept * plan.pipeline * share * sizes['layers']
        + layer
        + 8 * tokens * sizes['vocab']
    )


def _kept_by_experts(sizes: Mapping[str, Any]) -> int:
    """Bytes a token."""
    experts = sizes.get('experts') or {}
    ffn = experts.get('ffn') or sizes.get('ffn') or 4 * sizes['hidden']
    return int(experts.get('top_k', 0) * (4 * sizes['hidden'] + 6 * ffn))


def first_schedule(
    sizes: Mapping[str, Any], profile: Profile, *, nodes: int, devices: int, batch: int, sequence: int, model: str = ''
) -> str:
    """A schedule in YAML with comments.

    Arguments: ``sizes``, keys of a ``transformer:``; ``nodes`` and ``devices`` of each (0: all); ``model``, the path of
    a config.json that has these sizes, which is then named in their place.
    """
    node = devices or profile.devices
    ranks = nodes * node
    memory = float(profile.device.memory.size.value)
    plan = degrees({**sizes, 'sequence': sequence}, ranks, node, memory, batch)
    micro = max(1, batch // plan.data)
    values: dict[str, Any] = {'cluster.profile': profile.name}
    values |= {'cluster.nodes': nodes} if nodes > 1 else {}
    values |= {'cluster.devices': devices} if devices else {}
    if model:
        values |= {'workload.model': model, 'workload.sequence': sequence}
    else:
        values |= {f'workload.transformer.{key}': value for key, value in {**sizes, 'sequence': sequence}.items()}
    values |= {
        'workload.batch': batch, 'workload.precision': 'bf16', 'workload.gradients': 'fp32',
        'workload.optimizer.adamw.master_weights': True, 'workload.clip_norm': 1.0, 'plan.data': plan.data,
        'plan.tensor': plan.tensor, 'plan.sequence_parallel': plan.tensor > 1, 'plan.pipeline': plan.pipeline,
        'plan.micro_batches': micro, 'plan.zero': plan.zero, 'plan.recompute': plan.recompute, 'plan.copies': 1,
    }  # fmt: skip
    values |= {'plan.expert': plan.expert} if plan.expert > 1 else {}
    if plan.tensor == 1:
        del values['plan.sequence_parallel']
    billions = sum(weights_of(sizes)) / 1e9
    head = (
        f'About {billions:.3g} billion weights on {ranks} devices of {profile.name}: a first plan, to be changed.',
        'simpar run FILE predicts it; simpar check FILE says what every rank does; simpar plan FILE betters it.',
    )
    return yaml_of(values, _comments(plan, batch, micro, sequence), head)


def _comments(plan: Degrees, batch: int, micro: int, sequence: int) -> dict[str, str]:
    each = batch // (plan.data * micro)
    return {
        'cluster.profile': 'simpar profiles lists them; simpar calibrate writes one of your machine',
        'cluster.nodes': 'times the devices of a node',
        'cluster.devices': 'of each node',
        'workload.model': 'config.json of Hugging Face; any key of a transformer may stand beside it',
        'workload.transformer.sequence': 'tokens in a sample',
        'workload.sequence': 'tokens in a sample',
        'workload.batch': f'samples in a step, {batch * sequence:,} tokens',
        'workload.precision': 'of products and activations; fp8: hybrid has products read 8 bits',
        'workload.gradients': 'precision in which gradients are summed',
        'workload.optimizer.adamw.master_weights': 'weights are kept and updated in fp32',
        'plan.data': 'data ranks; 0 takes what the others leave',
        'plan.tensor': 'ranks that share every product; at most a node',
        'plan.sequence_parallel': 'norms and residuals are shared out over the tensor ranks, too',
        'plan.expert': 'data ranks that share the experts of a layer',
        'plan.pipeline': 'ranks that share the layers; order: names another order than 1f1b',
        'plan.micro_batches': f'of {each} sample{"s" if each > 1 else ""} of a data rank each',
        'plan.zero': '1 shards states over the data ranks, 2 gradients too, 3 weights too',
        'plan.recompute': 'none, selective (attention) or full: less memory, more work',
        'plan.copies': '2 lets one half of a micro-batch compute while the other communicates',
    }
