"""Whatever is written is a schedule or an error of ours; what is written out is read as the same; the JSON Schema."""

import copy
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from every import draws
from good_schedules import GRAPH, NETWORK, TRANSFORMER
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from simpar import model as ops
from simpar.errors import ScheduleError
from simpar.plans import Plan
from simpar.schedule import ClusterReference, Schedule, load_schedule, schedule_schema, written
from simpar.workload import Adam, AdamW, Momentum, Muon, Sgd, Transformer, Workload

DOCUMENTATION = Path(__file__).parent.parent / 'docs' / 'keys.md'
FUZZ = draws(150, suppress_health_check=[HealthCheck.function_scoped_fixture])

words = st.sampled_from(
    ['simpar', 'cluster', 'profile', 'nodes', 'slow', 'workload', 'network', 'layers', 'transformer', 'hidden', 'dense',
     'in', 'out', 'relu', 'batch', 'optimizer', 'sgd', 'adam', 'plan', 'data', 'tensor', 'copies', 'against', '<<',
     'plan.copies', 'cluster.nodes', 'input', 'of', 'reshape', 'shape', 'matmul', 'strategy', 'x', 'layer_norm',
     'rms_norm', 'silu', 'multiply', 'conv2d', 'kernel', '\0model', '', '3']
)  # fmt: skip
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.integers(0, 64),
    st.floats(),
    st.text(max_size=8),
    words,
)
trees = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words | st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


def places(tree: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [at, *(place for key, value in inner for place in places(value, (*at, key)))]


@st.composite
def changed_schedules(draw: st.DrawFn) -> Any:
    """A good schedule of which up to four values are replaced, removed or added to."""
    tree = {'schedule': yaml.safe_load(draw(st.sampled_from([TRANSFORMER, NETWORK, GRAPH])))}
    for _ in range(draw(st.integers(0, 4))):
        *way, last = draw(st.sampled_from(places(tree)[1:]))
        node: Any = tree
        for key in way:
            node = node[key]
        if draw(st.booleans()) and last != 'schedule':
            del node[last]
        else:
            node[last] = draw(trees)
        if not isinstance(tree.get('schedule'), dict | list):
            break
    return tree['schedule']


def try_to_read(path: Path, overrides: tuple[str, ...] = ()) -> Schedule | None:
    """A schedule, or none and an error of ours that fits on a screen; anything else fails the test."""
    try:
        return load_schedule(path, overrides)
    except ScheduleError as error:
        refused = error
    lines = str(refused).split('\n')
    assert 0 < len(lines) <= 21
    assert len(lines) == len(refused.problems)
    assert all(line.isprintable() and len(line) < 600 for line in lines)
    return None


@FUZZ
@given(tree=trees | changed_schedules())
def test_any_tree_is_a_schedule_or_an_error(tree, tmp_path):
    path = tmp_path / 'schedule.yaml'
    path.write_text(yaml.safe_dump(tree, allow_unicode=True), encoding='utf-8', errors='surrogatepass')
    schedule = try_to_read(path)
    if schedule is not None:
        schedule.baseline()


@FUZZ
@given(
    data=st.binary(max_size=200) | st.text(alphabet='{}[]:,-&*!<> \n\t"\'#|>%@`abc12.~\\x', max_size=80).map(str.encode)
)
def test_any_bytes_are_an_error(data, tmp_path):
    path = tmp_path / 'schedule.yaml'
    path.write_bytes(data)
    assert try_to_read(path) is None


@FUZZ
@given(
    overrides=st.lists(
        st.text(max_size=20)
        | st.builds(
            lambda keys, value: f'{".".join(keys)}={value}',
            st.lists(words | st.just('0') | st.text(max_size=3), max_size=5),
            scalars | st.text(alphabet='{}[]:,-&*!<> "\'#abc12.~', max_size=20),
        ),
        max_size=3,
    )
)
def test_any_settings_are_a_schedule_or_an_error(overrides, put):
    path = put('schedule.yaml', NETWORK)
    try_to_read(path, tuple(overrides))


networks = st.builds(
    lambda sizes, bias, deviation: ops.Network(
        layers=(ops.Flatten(), *(ops.Dense(inputs=a, outputs=b, bias=bias) for a, b in pairwise(sizes))),
        init_std=deviation,
    ),
    st.lists(st.integers(1, 2**24), min_size=2, max_size=4),
    st.booleans(),
    st.floats(0, 1e6),
)


@st.composite
def graphs(draw: st.DrawFn) -> ops.Network:
    """Operators on rows of one width, of every kind, that read any rows before them."""
    width, layers, rows = draw(st.integers(1, 2**10)), [], ['x']

    def put(kind: type, **keys: Any) -> str:
        """Strategies are any: whether they fit is found out when they are lowered."""
        names = {one.name for one in fields(kind)}
        keys |= {'strategy': draw(cuts)} if 'strategy' in names else {}
        keys |= {'recompute': draw(st.booleans())} if 'recompute' in names else {}
        keys |= {'name': f'n{len(layers)}'}
        layers.append(kind(**keys))
        return f'n{len(layers) - 1}'

    tokens = draw(st.booleans())
    if tokens:
        put(ops.Embedding, vocab=draw(st.integers(1, 2**24)), width=width)
        rows = [put(ops.Reshape, shape=(-1, width))]
    alone = [ops.Gelu, ops.Relu, ops.Silu, ops.Mul, ops.Softmax, ops.LayerNorm, ops.RmsNorm, ops.Dense]
    for kind in draw(
        st.lists(st.sampled_from([*alone, ops.Add, ops.Multiply, ops.Transpose, ops.MatMul, ops.Reduce, ops.Conv2d]))
    ):
        last = rows[-1]
        if kind is ops.Conv2d:
            image = put(ops.Reshape, shape=(-1, 1, 1, width), of=last)
            keys = {'inputs': 1, 'outputs': 1, 'kernel': 1, 'bias': draw(st.booleans())}
            rows.append(put(ops.Reshape, shape=(-1, width), of=put(ops.Conv2d, of=image, **keys)))
        elif kind in (ops.Transpose, ops.MatMul, ops.Reduce):
            lone = put(ops.Reshape, shape=(-1, 1, width), of=last)
            if kind is ops.Reduce:
                turned = put(ops.Reduce, dims=(1,), mean=draw(st.booleans()), keep=draw(st.booleans()), of=lone)
            elif kind is ops.Transpose:
                turned = put(ops.Transpose, permutation=(0, 2, 1), of=lone)
            else:
                square = put(ops.MatMul, of=(lone, lone), transpose_a=True)
                turned = put(ops.MatMul, of=(square, lone), transpose_b=True)
            rows.append(put(ops.Reshape, shape=(-1, width), of=turned))
        elif kind in (ops.Add, ops.Multiply):
            rows.append(put(kind, of=(draw(st.sampled_from(rows)), last)))
        else:
            more = {ops.Dense: {'inputs': width, 'outputs': width}, ops.Mul: {'factor': draw(st.floats(-1e12, 1e12))}}
            rows.append(put(kind, of=last, **more.get(kind, {})))
    rows.append(put(ops.Dense, inputs=width, outputs=width, of=rows[-1]))
    return ops.Network(layers=tuple(layers), input=(draw(st.integers(1, 64)),) if tokens else (width,))


cuts = st.lists(st.lists(st.integers(1, 8), max_size=3).map(tuple), max_size=1).map(tuple)
transformers = st.builds(
    lambda heads, width, **keys: Transformer(heads=heads, hidden=heads * width, **keys),
    st.sampled_from([2, 4, 6]),
    st.integers(1, 99),
    layers=st.integers(1, 99),
    vocab=st.integers(1, 2**20),
    sequence=st.integers(1, 99).map(lambda half: 2 * half),
    kv_heads=st.sampled_from([0, 2]),
    tied=st.booleans(),
)
optimizers = st.builds(Sgd, learning_rate=st.floats(0, 1e6)) | st.builds(
    Adam, beta1=st.floats(0, 1, exclude_max=True), epsilon=st.floats(0, 1, exclude_min=True)
)
optimizers |= st.builds(AdamW, weight_decay=st.floats(0, 1e6)) | st.builds(
    Momentum, momentum=st.floats(0.1, 0.9), nesterov=st.booleans(), master_weights=st.booleans()
)
optimizers |= st.builds(Muon, momentum=st.floats(0.1, 0.9), nesterov=st.booleans(), weight_decay=st.floats(0, 1e6))
clusters = st.builds(
    ClusterReference,
    profile=st.text('abc-', min_size=1),
    nodes=st.integers(1, 9),
    devices=st.integers(0, 9),
    slow=st.dictionaries(st.integers(0, 99), st.floats(0, 1, exclude_min=True), max_size=3),
)
workloads = st.builds(
    Workload,
    model=networks | graphs() | transformers,
    batch=st.integers(1, 99).map(lambda part: 12 * part),
    optimizer=optimizers,
)
plans = st.builds(
    Plan, tensor=st.integers(1, 2), copies=st.integers(1, 4), streams=st.sampled_from(['group', 'single'])
)


def fitting(schedule: Schedule) -> Schedule:
    """Degrees go with chains and transformers only."""
    model = schedule.workload.model
    graph = isinstance(model, ops.Network) and model.is_graph
    return replace(schedule, plan=replace(schedule.plan, tensor=1)) if graph else schedule


schedules = st.builds(
    Schedule,
    simpar=st.just(1),
    cluster=clusters,
    workload=workloads,
    plan=plans,
    against=st.sampled_from([None, {}, {'plan.copies': 1, 'plan.reduce': 'late'}]),
).map(fitting)


@FUZZ
@given(schedule=schedules)
def test_what_is_written_is_read_as_the_same(schedule, put):
    path = put('schedule.yaml', yaml.safe_dump(written(schedule)))
    assert load_schedule(path) == schedule


# The JSON Schema


def in_json(tree: Any) -> Any:
    return {str(key): in_json(value) for key, value in tree.items()} if isinstance(tree, dict) else (
        [in_json(value) for value in tree] if isinstance(tree, list) else tree
    )  # fmt: skip


def test_the_schema_accepts_the_examples():
    Draft202012Validator.check_schema(schedule_schema())
    schema = Draft202012Validator(schedule_schema())
    examples = sorted((DOCUMENTATION.parent.parent / 'examples').glob('*.yaml'))
    assert examples
    for path in examples:
        assert isinstance(load_schedule(path), Schedule)
    for text in (TRANSFORMER, NETWORK, GRAPH, *(path.read_text() for path in examples)):
        tree = in_json(yaml.safe_load(text))
        assert schema.is_valid(tree)
        wrong = copy.deepcopy(tree)
        wrong['plan']['copys'] = 2
        assert not schema.is_valid(wrong)


@FUZZ
@given(tree=changed_schedules())
def test_the_schema_accepts_what_is_read(tree, tmp_path):
    path = tmp_path / 'schedule.yaml'
    path.write_text(yaml.safe_dump(tree, allow_unicode=True), encoding='utf-8', errors='surrogatepass')
    if try_to_read(path) is not None:
        assert Draft202012Validator(schedule_schema()).is_valid(in_json(tree))
