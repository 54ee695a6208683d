"""First schedules: their YAML, the question that their baseline answers, and what fits of a model on some devices."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from simpar import files, profiles, units
from simpar.hardware import Profile

WIDTH: Final = 120
_SHORT: Final = 64
_PLAIN: Final = re.compile(r'[A-Za-z][A-Za-z0-9_-]*')
_WORDS: Final = ('null', 'true', 'false', 'yes', 'no', 'on', 'off', 'y', 'n')
PASSES: Final = ('matmul_grad_comm_overlap', 'enable_grad_comm_opt', 'enable_opt_shard_comm_opt')
"""MindSpore's passes that put communication under computation, without the one that costs memory."""
SHARE: Final = 0.85
"""Of a device's memory, what the estimate may take: it leaves out buffers and fragments."""
MOST: Final = 6
"""Plans that are compared: each takes a prediction."""
DEEPEST: Final = 16
"""Stages of the deepest pipeline that is compared where another plan fits."""
BYTES: Final = {'weights': 2, 'gradients': 4, 'states': 12}
"""Of a weight: bf16; fp32 sums; fp32 weight and two moments of Adam."""


class Question(NamedTuple):
    """What differs in the baseline, by dotted key, and what the gain over it says, in words."""

    against: Mapping[str, Any]
    comment: str


_WHAT_IF: Final = 'would {} be faster? The plan is compared with them'
_INTERLEAVED: Final = 'what interleaved stages gain, over plain 1F1B'
NONE: Final = Question({}, 'no baseline is known to fit this plan: write what to compare with, e.g. {plan.copies: 2}')


# YAML


def yaml_of(
    values: Mapping[str, Any], comments: Mapping[str, str], head: tuple[str, ...] = (), question: Question = NONE
) -> str:
    """YAML of values by dotted key, each with its comment.

    Arguments: ``head``, lines of comment before all; ``question``, the baseline that the plan is compared with.
    """
    tree = nested(values.items(), {'simpar': 1, 'cluster': {}, 'workload': {}, 'plan': {}})
    lines = [f'# {line}'.rstrip() for line in head] + list(_lines(tree, '', comments, 0))
    lines.append(f'# The baseline of the gain: {question.comment}.')
    changes = ', '.join(f'{key}: {scalar(value)}' for key, value in question.against.items())
    lines.append(f'against: {{{changes}}}')
    return '\n'.join(lines) + '\n'


def nested(values: Iterable[tuple[str, Any]], tree: dict[str, Any]) -> dict[str, Any]:
    """The tree with values at dotted keys."""
    for key, value in values:
        node = tree
        *above, last = key.split('.')
        for name in above:
            node = node.setdefault(name, {})
        node[last] = value
    return tree


def _lines(node: Mapping[str, Any], at: str, comments: Mapping[str, str], depth: int) -> Iterator[str]:
    for key, value in node.items():
        place = f'{at}{key}'
        indent = '  ' * depth
        if isinstance(value, dict) and value:
            yield f'{indent}{key}:'
            yield from _lines(value, f'{place}.', comments, depth + 1)
            continue
        if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
            yield f'{indent}{key}:'
            yield from (f'{indent}  - {scalar(one)}' for one in value)
            continue
        line = f'{indent}{key}: {scalar(value)}'
        note = clean(comments.get(place, ''))
        if not note:
            yield line
        elif len(line) < _SHORT - 14 and len(note) + 50 <= WIDTH:
            yield f'{line:<48}  # {note}'
        else:
            yield f'{indent}# {note[: WIDTH - 4]}'
            yield line


def scalar(value: Any) -> str:
    """A value as YAML, lists in one line; JSON is YAML, and its text cannot be mistaken for anything else."""
    if isinstance(value, str):
        return (
            value if _PLAIN.fullmatch(value) and value.lower() not in _WORDS else json.dumps(value, ensure_ascii=False)
        )
    if isinstance(value, dict):
        return f'{{{", ".join(f"{key}: {scalar(one)}" for key, one in value.items())}}}'
    if isinstance(value, list):
        return f'[{", ".join(map(scalar, value))}]'
    if isinstance(value, float):
        return repr(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    return json.dumps(value)


def clean(text: str) -> str:
    """A text without letters that no file should have."""
    return ''.join(one if one.isprintable() else '?' for one in text)


# the baseline


def questions(values: Mapping[str, Any], ranks: int) -> Iterator[Question]:
    """Baselines for a plan, the most telling first: without one kind of overlap that it has, else with copies.

    Plans that overlap nothing are weighed against two copies, interleaved stages, and overlapped sums.
    Arguments: ``values`` of the schedule by dotted key; ``ranks`` in all.
    """

    def plan(key: str, otherwise: Any = 1) -> Any:
        return values.get(f'plan.{key}', otherwise)

    inner, micro, stages = plan('pipeline') * plan('tensor') * plan('context'), plan('micro_batches'), plan('pipeline')
    ahead = plan('zero', 0) == 3 and plan('prefetch')
    is_shared = (plan('data', 0) or max(1, ranks // max(1, inner))) > 1
    is_split = any(plan(key) > 1 for key in ('tensor', 'context', 'expert'))
    layers, is_even = values.get('workload.transformer.layers', 0), micro % 2 == 0
    chunked = stages > 1 and micro % stages == 0 and layers and layers % (2 * stages) == 0
    interleaved, overlaps = plan('order') == 'interleaved-1f1b', plan('reduce_gradients') == 'overlapped'
    copies = _WHAT_IF.format('two copies')
    rows: Sequence[tuple[Any, dict[str, Any], str]] = (
        (plan('copies') > 1, {'copies': 1}, 'what the copies gain, over the whole batch at once'),
        (plan('chunks') > 1 and interleaved, {'order': '1f1b', 'chunks': 1}, _INTERLEAVED),
        (plan('tiles') > 1, {'tiles': 1}, 'what products and messages in tiles gain'),
        (plan('overlap', ()), {'overlap': []}, 'what the overlap passes gain'),
        (is_shared and ahead, {'prefetch': 0}, 'what gathers ahead of their use gain'),
        (is_shared and overlaps, {'reduce_gradients': 'end'}, 'what sums of gradients under the backward gain'),
        (is_split, {'copies': 2}, copies),
        (is_split and is_even, {'copies': 2, 'micro_batches': micro // 2}, copies),
        (plan('overlap', None) == [], {'overlap': list(PASSES)}, _WHAT_IF.format("MindSpore's overlap passes")),
        (chunked, {'order': 'interleaved-1f1b', 'chunks': 2}, _WHAT_IF.format('interleaved stages')),
        (is_shared, {'reduce_gradients': 'overlapped'}, _WHAT_IF.format('sums of gradients under the backward')),
    )
    for holds, against, comment in rows:
        if holds:
            yield Question({f'plan.{key}': value for key, value in against.items()}, comment)


# plans that fit


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


def candidates(sizes: Mapping[str, Any], ranks: int, node: int, memory: float, batch: int) -> list[Degrees]:
    """A handful of plans that fit by their weights, one sample a micro-batch; if none does, the one that holds least.

    For each degree of tensor parallelism, the least pipeline with states sharded, or with all sharded.
    Arguments: ``ranks`` in all, ``node`` of them in one; ``memory`` of a device in bytes; ``batch``, a multiple
    of data.
    """
    shapes = _shapes(sizes, ranks, node, batch)
    fitting = [_named(one) for one in shapes if held(sizes, one) <= SHARE * memory]
    if not fitting:
        return [_named(min(shapes, key=lambda one: held(sizes, one), default=Degrees(ranks, 1, 1, 3, 'full')))]
    least: dict[tuple[int, bool], Degrees] = {}
    for one in fitting:
        # The first of its kind recomputes the least, and has the least pipeline.
        least.setdefault((one.tensor, one.zero == 3), one)
    # All is sharded where no tensor rank is there to share it, or where sharded states alone do not fit.
    sharded = {tensor for tensor, is_full in least if not is_full and tensor > 1}
    kinds = [one for one in least.values() if one.zero != 3 or one.tensor not in sharded]
    # Of very deep pipelines a prediction takes longest, and they are seldom the best.
    kinds = [one for one in kinds if one.pipeline <= DEEPEST] or kinds
    return sorted(kinds, key=lambda one: (one.recompute == 'full', one.pipeline, one.zero))[:MOST]


def _named(plan: Degrees) -> Degrees:
    """The plan, with no stage of ZeRO where one data rank has nobody to share with."""
    return plan if plan.data > 1 else plan._replace(zero=0)


def _shapes(sizes: Mapping[str, Any], ranks: int, node: int, batch: int) -> list[Degrees]:
    """All plans of the devices, those first that recompute less, have fewer stages, more expert ranks and less ZeRO."""
    heads = sizes.get('kv_heads') or sizes['heads']
    tensors = [one for one in range(1, node + 1) if heads % one == 0 and node % one == 0]
    pipelines = [one for one in range(1, sizes['layers'] + 1) if ranks % one == 0]
    count = (sizes.get('experts') or {}).get('count', 1)
    return [
        Degrees(ranks // (tensor * pipeline), tensor, pipeline, zero, recompute, expert)
        for recompute in ('selective', 'full')
        for pipeline in pipelines
        for tensor in tensors
        for expert in range(min(count, node), 0, -1)
        for zero in (1, 3)
        if ranks % (tensor * pipeline) == 0 and batch % (ranks // (tensor * pipeline)) == 0
        if count % expert == 0 and ranks // (tensor * pipeline) % expert == 0
    ]


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
    layer = tokens * (34 * sizes['hidden'] + _expert_bytes(sizes))
    activations = layer if plan.recompute == 'selective' else 2 * tokens * sizes['hidden']
    return float(
        weights * share
        + gathered
        + activations * plan.pipeline * share * sizes['layers']
        + layer
        + 8 * tokens * sizes['vocab']
    )


def _expert_bytes(sizes: Mapping[str, Any]) -> int:
    """Bytes a token."""
    experts = sizes.get('experts') or {}
    ffn = experts.get('ffn') or sizes.get('ffn') or 4 * sizes['hidden']
    return int(experts.get('top_k', 0) * (4 * sizes['hidden'] + 6 * ffn))


class Step(NamedTuple):
    """Seconds of a predicted step, and whether its memory fits the device."""

    seconds: float
    fits: bool


@dataclass(frozen=True, slots=True)
class First:
    """A first schedule.

    Arguments: ``plan``, its degrees; ``values`` by dotted key; ``comments`` of keys; ``head``, lines before all.
    """

    plan: Degrees
    values: Mapping[str, Any]
    comments: Mapping[str, str]
    head: tuple[str, ...]

    def with_full_recomputation(self) -> First:
        """The schedule that makes full layers again, and so keeps less."""
        values = {**self.values, 'plan.recompute': 'full'}
        return replace(self, plan=self.plan._replace(recompute='full'), values=values)

    def text(self, question: Question = NONE, compared: tuple[str, ...] = ()) -> str:
        """The schedule in YAML.

        Arguments: ``question``, the baseline of the gain; ``compared``, lines on the plans that it was chosen from.
        """
        return yaml_of(self.values, self.comments, (*self.head, *compared), question)


def first_schedules(
    sizes: Mapping[str, Any], profile: Profile, *, nodes: int, devices: int, batch: int, sequence: int, model: str = ''
) -> list[First]:
    """A schedule for each of a handful of plans that fit.

    Arguments: ``sizes``, keys of a ``transformer:``; ``nodes`` and ``devices`` of each (0: all); ``model``, the path of
    a config.json that has these sizes, which is then named in their place.
    """
    node = devices or profile.devices
    memory = float(profile.device.memory.size.value)
    plans = candidates({**sizes, 'sequence': sequence}, nodes * node, node, memory, batch)
    keys: dict[str, Any] = {'cluster.profile': profile.name}
    framework = _framework(profile)
    keys |= {'cluster.stack': profiles.stack_of(framework, profile.name)} if framework else {}
    keys |= {'cluster.nodes': nodes} if nodes > 1 else {}
    keys |= {'cluster.devices': devices} if devices else {}
    if model:
        keys |= {'workload.model': model, 'workload.sequence': sequence}
    else:
        keys |= {f'workload.transformer.{key}': value for key, value in {**sizes, 'sequence': sequence}.items()}
    keys |= {
        'workload.batch': batch, 'workload.precision': 'bf16', 'workload.gradients': 'fp32',
        'workload.optimizer.adamw.master_weights': True, 'workload.clip_norm': 1.0,
    }  # fmt: skip
    billions = sum(weights_of(sizes)) / 1e9
    head = (
        f'About {billions:.3g} billion weights on {nodes * node} devices of {profile.name}: a plan to begin with.',
        'simpar run FILE predicts it; simpar check FILE says what every rank does; simpar plan FILE betters it.',
    )
    return [_first(plan, keys, head, batch, sequence, framework) for plan in plans]


def _framework(profile: Profile) -> str:
    """The framework that a model of a ``transformer:`` is usually trained with on a device; none where nobody knows."""
    name = profile.name.lower()
    if 'ascend' in name:
        return 'MindSpeed-LLM'
    is_nvidia = profile.device.work_queues is not None
    return 'Megatron-LM' if is_nvidia else ''


def _first(
    plan: Degrees, keys: Mapping[str, Any], head: tuple[str, ...], batch: int, sequence: int, framework: str
) -> First:
    micro = max(1, batch // plan.data)
    values = {
        **keys, 'plan.data': plan.data, 'plan.tensor': plan.tensor, 'plan.sequence_parallel': plan.tensor > 1,
        'plan.pipeline': plan.pipeline, 'plan.micro_batches': micro, 'plan.zero': plan.zero,
        'plan.recompute': plan.recompute, 'plan.copies': 1, 'plan.reduce_gradients': 'overlapped',
    }  # fmt: skip
    values |= {'plan.expert': plan.expert} if plan.expert > 1 else {}
    if plan.tensor == 1:
        del values['plan.sequence_parallel']
    if plan.data == 1:
        del values['plan.reduce_gradients']
    return First(plan, values, _comments(plan, batch, micro, sequence, framework), head)


def compared(steps: Mapping[Degrees, Step]) -> tuple[str, ...]:
    """Lines on the plans that were compared, the fastest first, those last that do not fit."""
    ordered = sorted(steps.items(), key=lambda one: (not one[1].fits, one[1].seconds))
    return tuple(
        f'Compared: {_words(plan)}: {units.format_time(step.seconds)} a step{"" if step.fits else ", does not fit"}'
        for plan, step in ordered
    )


def _words(plan: Degrees) -> str:
    degrees = [f'data {plan.data}', f'tensor {plan.tensor}', f'pipeline {plan.pipeline}']
    degrees += [f'expert {plan.expert}'] if plan.expert > 1 else []
    return ', '.join([*degrees, f'zero {plan.zero}', f'{plan.recompute} recomputation'])


def _comments(plan: Degrees, batch: int, micro: int, sequence: int, framework: str) -> dict[str, str]:
    each = batch // (plan.data * micro)
    words = {'framework': framework, 'tokens': batch * sequence, 'samples': f'{each} sample{"s" if each > 1 else ""}'}
    rows = files.read_csv(Path(__file__).parent / 'tables' / 'first_schedule.csv')
    return {row['key']: row['comment'].format(**words) for row in rows}
