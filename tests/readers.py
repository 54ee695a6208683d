"""Every reader of files: good files of each kind, the function that reads them, and the modules that it is of.

``tests/test_readers.py`` holds that no module opens a file and stands in none of the lists here.
``tests/prove_readers.py`` reads changed files by them, thousands in one process.
"""

import gzip
import hashlib
import io
import itertools
import json
import pickle
import random
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from changed import changed
from field_score import files as public_files
from mutations import ROOT, kinds, mutated, prepare, python, settings
from proof import printed
from test_trace_formats import nsight

from executor.bench import ranks
from executor.checkpoint import contents_of, parameters_of
from executor.data import identity
from executor.train import train
from simpar import document, from_module
from simpar.calibrate import calibrate, load_record
from simpar.case import load_case
from simpar.chakra import read_chakra
from simpar.commands.trace import trace_lines
from simpar.errors import RunFailed
from simpar.exporting.onto import onto
from simpar.importing.mapping import schedule_text
from simpar.importing.read import imported
from simpar.pipeline import check_order, read_csv
from simpar.profiles import COLUMNS, load_profile, load_stack, read_table
from simpar.program.text import parse_program
from simpar.recording.job import read_job
from simpar.saved_answer import difference, render_difference
from simpar.schedule import load_schedule
from simpar.schedule.schedule import load_rows
from simpar.sweep.journal import Journal, Wanted
from simpar.trace_files import load_trace
from simpar.traces import read_traces
from simpar.validate.anchor import AnchorFile, read_own_step
from simpar.validate.memory import measured
from simpar.validate.rows import read_rows

TESTS: Final = ROOT / 'tests'
KERNELS: Final = ((924922186, 942626994), (1196058242, 1213791658), (1449177557, 1466878365))
"""Begin and end of kernels in nanoseconds."""
RECORDED: Final = TESTS / 'recorded'
STACKS: Final = ROOT / 'hw_profiles' / 'stacks'
LINES: Final = 60
"""Of a table or a recording that are kept, so that a case takes little time."""


@dataclass(frozen=True)
class Seed:
    """Good files by name, and which of them is changed: one of ``wrong``, or any."""

    files: dict[str, bytes]
    wrong: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reader:
    """One reader.

    Arguments: ``read``, given the folder of the files; ``seeds``, good files, given a folder with what simpar itself
    wrote; ``modules``, those that open the files; ``slow``, it is taken in one of ten rounds; ``seconds`` of the
    processor, after which a case is stopped: a busy machine makes none slower.
    """

    read: Callable[[Path], object]
    seeds: Callable[[Path], Iterator[Seed]]
    modules: tuple[str, ...]
    slow: bool = False
    seconds: int = 10


NO_READERS: Final = {
    'simpar/calibrate/profile.py': 'a profile that comes with simpar',
    'simpar/cli.py': 'the null device',
    'simpar/commands/common.py': 'the schedule once more, after it was read',
    'simpar/commands/measure.py': 'what its own ranks wrote a moment before',
    'simpar/commands/script.py': 'a table that comes with simpar',
    'simpar/commands/shipped.py': '200 letters of a page, before the browser is given it',
    'simpar/files.py': 'the function by which all others read',
    'simpar/huggingface/families.py': 'a table that comes with simpar',
    'simpar/page/page.py': 'parts of a page that come with simpar',
    'simpar/planner/render.py': 'the schedule once more, after it was read',
    'simpar/recording/readers.py': 'a profile, after it was read',
    'simpar/saved_answer.py': 'the digest of a file, whatever it holds',
    'simpar/shipped.py': 'schedules that come with simpar',
    'executor/bench/items.py': 'a table that comes with simpar',
    'executor/gpu_check.py': 'rows that the same command wrote some minutes before',
    'executor/host.py': 'files of the kernel',
    'executor/cluster/meeting.py': 'no file: a port of a host',
    'executor/ranks/emulated.py': 'no file: an emulated device',
    'executor/ranks/pool.py': 'what a rank of its own printed',
    'executor/ranks/watchdog.py': 'a counter of its own',
}
"""Modules that open files which no user gives them, and what these are."""


# what reads


def _schedule(folder: Path) -> None:
    path = folder / 's.yaml'
    (load_rows if b'\nsweep:' in path.read_bytes() else load_schedule)(path)


def _settings(folder: Path) -> None:
    words = (folder / 'set.txt').read_bytes().decode('utf-8', errors='surrogateescape').split('\n')
    load_schedule(folder / 's.yaml', [word.replace('\0', '') for word in words if word])


def _profile(folder: Path) -> None:
    found = load_profile(folder / 'profile.yaml')
    for kind in COLUMNS:
        if table := getattr(found.tables, kind):
            read_table(table, kind)


def _answers(folder: Path) -> None:
    render_difference(difference(load_trace(folder / 'one.json'), load_trace(folder / 'other.json')))


def _launch(folder: Path, **given: str) -> None:
    (path, *_) = sorted(one for one in folder.iterdir() if not one.name.startswith('beside'))
    schedule_text(imported(path, given=given), path.name)


@cache
def _gpt() -> Any:
    model = '{layers: 4, hidden: 256, heads: 8, vocab: 1024, sequence: 128}'
    return load_schedule(
        f'simpar: 1\ncluster: h100-sxm-8\nworkload: {{transformer: {model}, batch: 32, precision: bf16}}\n'
        'plan: {tensor: 4, pipeline: 2, micro_batches: 8}\n'
    )


def _recording(folder: Path) -> None:
    files = sorted(folder.iterdir())
    list(trace_lines(read_traces(files[0] if len(files) == 1 else folder)))


def _journal(folder: Path) -> None:
    (path,) = folder.iterdir()
    keys = re.findall(rb'"key": "([^"]*)"', path.read_bytes())
    Journal(path).take([Wanted(key=key.decode(errors='replace'), places='') for key in keys])


def _bench(folder: Path) -> None:
    class Anew:
        """Ranks that would measure what a journal does not have."""

        world, net = 2, None

        def timed(self, *_: Any) -> Any:
            raise RunFailed('measured anew')

    program, _ = _small()
    ranks.Journal(folder, {'device': 'cpu'}).over(Anew()).timed(program, 2)


@cache
def _small() -> Any:
    """A small program and its trace."""
    text = (
        'simpar: 1\ncluster: {profile: cpu-gloo, devices: 2}\n'
        'workload: {batch: 4, loss: mse, network: [{dense: {in: 4, out: 4}}]}\nplan: {data: 2}\n'
    )
    case = load_case(text)
    return case.program, case.predict(2).trace


def _checkpoint(folder: Path) -> None:
    text = (folder / 'simpar.json').read_bytes()
    digest = hashlib.sha256(text).hexdigest()
    # Of most changed lists the digest is right, as of one that another program wrote.
    if digest[0] < 'd':
        (folder / 'simpar.json.sha256').write_text(f'{digest}  simpar.json\n', encoding='utf-8')
    parameters_of(folder, contents_of(folder), _trained())


@cache
def _trained() -> Any:
    return load_case(TRAINED).program


TRAINED: Final = (
    'simpar: 1\ncluster: {profile: cpu-gloo, devices: 2}\n'
    'workload: {batch: 4, loss: mse, network: [{dense: {in: 8, out: 8}}, {relu: {}}, {dense: {in: 8, out: 4}}]}\n'
    'plan: {data: 2}\n'
)


# good files


def seeds(folder: Path, readers: dict[str, Reader] | None = None) -> dict[str, list[Seed]]:
    """Good files of readers, by default of all here. Arguments: ``folder``, for what simpar writes itself."""
    prepare(folder)
    printed(['run', str(folder / 'pipeline.yaml'), '--quiet', '--chakra', str(folder / 'et')])
    return {name: list(reader.seeds(folder)) for name, reader in (readers or READERS).items()}


def put(folder: Path, files: dict[str, bytes]) -> None:
    """Write files by their names, which may have folders."""
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def case(drawn: random.Random, known: dict[str, list[Seed]], name: str) -> dict[str, bytes]:
    """Files of a reader, one of them changed."""
    seed = drawn.choice(known[name])
    wrong = drawn.choice(seed.wrong or tuple(seed.files))
    data, form = seed.files[wrong], wrong.rpartition('.')[2]
    if form == 'keys':
        data = settings(drawn, data)
    elif form == 'py' and drawn.random() < 0.5:
        data = python(drawn, data.decode()).encode()
    elif form in _TEXTS and drawn.random() < 0.5:
        data = mutated(drawn, data.decode()).encode('utf-8', errors='surrogatepass')
    else:
        data = changed(drawn, data, form)
    return {**seed.files, wrong: data}


_TEXTS: Final = frozenset({'yaml', 'yml', 'json', 'toml', 'sh', 'py', 'csv', 'txt', 'program', 'rows', 'slurm'})


def _one(name: str, paths: Any) -> Iterator[Seed]:
    """Each file by itself, under a name; an empty one keeps its own."""
    for path in sorted(paths):
        yield Seed({name or path.name: path.read_bytes()})


def _each(name: str, pattern: str, top: Path | None = None) -> Callable[[Path], Iterator[Seed]]:
    """Seeds of each file that fits a pattern, of the project or, by default, of what simpar wrote."""
    return lambda folder: _one(name, (top or folder).rglob(pattern))


def _texts(name: str, *texts: str) -> Callable[[Path], Iterator[Seed]]:
    """Seeds of one file by itself, of each text."""
    return lambda folder: (Seed({name: text.encode()}) for text in texts)


def _schedules(folder: Path) -> Iterator[Seed]:
    beside = {'llama3_8b.json': (ROOT / 'examples' / 'llama3_8b.json').read_bytes()}
    for path in sorted((ROOT / 'examples').glob('*.yaml')):
        yield Seed({'s.yaml': path.read_bytes(), **beside}, ('s.yaml',))


def _sets(folder: Path) -> Iterator[Seed]:
    keys = list(kinds())
    text = (ROOT / 'examples' / 'transformer_h100.yaml').read_bytes()
    yield Seed({'set.txt': b'workload.batch=64\nplan.tensor=4\nplan.recompute=full', 's.yaml': text}, ('set.txt',))
    for begin in range(0, len(keys), 3):
        words = '\n'.join(f'{key}=1' for key in keys[begin : begin + 3])
        yield Seed({'set.txt': words.encode(), 's.yaml': text}, ('set.txt',))


def _configs(folder: Path) -> Iterator[Seed]:
    text = (
        'simpar: 1\ncluster: {profile: h100-sxm-8, nodes: 8}\n'
        'workload: {model: m.json, batch: 64, sequence: 1024, precision: bf16}\nplan: {data: 64}\n'
    )
    for path in sorted((TESTS / 'configs').glob('*.json')):
        yield Seed({'m.json': path.read_bytes(), 's.yaml': text.encode()}, ('m.json',))


def _modules(folder: Path) -> Iterator[Seed]:
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 4))
    graph = json.loads(from_module(module, torch.randn(4, 8)).graph)
    tree = {
        'simpar': 1,
        'cluster': {'profile': 'cpu-gloo', 'devices': 2},
        'workload': {'module': {'graph': json.dumps(graph)}, 'batch': 8, 'loss': 'mse'},
        'plan': {'data': 2},
    }
    # A graph is text in a schedule: changed as one, and as a tree by the reader of seeds below.
    yield Seed({'s.yaml': json.dumps(tree).encode()})
    for key in ('nodes', 'sources'):
        for at, one in enumerate(graph[key]):
            for field in one:
                other = {**graph, key: [*graph[key][:at], {**one, field: None}, *graph[key][at + 1 :]]}
                wrong = {**tree, 'workload': {**tree['workload'], 'module': {'graph': json.dumps(other)}}}
                yield Seed({'s.yaml': json.dumps(wrong).encode()})


def _profiles(folder: Path) -> Iterator[Seed]:
    for name in ('h100-sxm-8', 'cpu-gloo', 'a100-sxm-8', 'ascend910b-8'):
        files = {path.name: path.read_bytes() for path in (ROOT / 'hw_profiles' / name).iterdir()}
        yield Seed({one: data if one.endswith(('.yaml', '.gz')) else _head(data) for one, data in files.items()})


def _head(data: bytes, lines: int = LINES) -> bytes:
    return b''.join(data.splitlines(keepends=True)[:lines])


def _saved(folder: Path) -> Iterator[Seed]:
    one, other = ((folder / f'trace{number}.json').read_bytes() for number in (0, 1))
    yield Seed({'one.json': one, 'other.json': other})


def _launch_files(folder: Path) -> Iterator[Seed]:
    yield from _one('', (TESTS / 'launch_files').iterdir())
    for name, text in _OTHERS.items():
        yield Seed({name: text.encode()})
    for run in sorted((TESTS / 'mindspore_scripts').glob('*/run.sh')):
        yield Seed({'run.sh': run.read_bytes(), 'beside_train.py': run.with_name('train.py').read_bytes()}, ('run.sh',))


_OTHERS: Final = {
    'accelerate.yaml': 'compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nmixed_precision: bf16\n'
    'num_machines: 2\nnum_processes: 16\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n',
    'llama_factory.yaml': 'model_name_or_path: meta-llama/Llama-3.1-8B\nstage: sft\nfinetuning_type: lora\n'
    'lora_rank: 8\ncutoff_len: 2048\nper_device_train_batch_size: 1\nbf16: true\ndeepspeed: ds_z3.json\n',
    'torchtitan.sh': 'NGPU=8 torchrun --nnodes 2 --nproc_per_node 8 torchtitan/train.py --job.config_file l.toml '
    '--parallelism.tensor_parallel_degree 4 --training.local_batch_size 2\n',
}
"""Small files of launchers that the folder has none of."""


def _public(folder: Path) -> Iterator[Seed]:
    for row in public_files():
        if 'tree' in row:
            yield Seed({'f.json': json.dumps(row['tree']).encode()})
        else:
            words = ' '.join(f'{name} {json.dumps(value) if value is not True else ""}' for name, value in row['flags'])
            text = f'GPUS=8\ntorchrun --nnodes 8 --nproc_per_node $GPUS {row["trainer"]} {words}\n'
            yield Seed({'f.sh': text.encode('utf-8', errors='replace')})


def _kineto(folder: Path) -> Iterator[Seed]:
    cases = RECORDED / 'kineto_cases'
    yield from _one('', cases.glob('*.json'))
    yield from _one('', sorted((cases / 'straggler4').glob('*.gz'))[:1])
    yield Seed({path.name: path.read_bytes() for path in sorted((cases / 'straggler4').glob('*.gz'))[:2]})


def _ascend(folder: Path) -> Iterator[Seed]:
    for path in sorted((RECORDED / 'msprof').rglob('*.csv')):
        yield Seed({path.name: _head(path.read_bytes())})
    head = 'OP Type,Task Duration(us),Task Start Time(us),Op Name,Task Type,Step Id,Device_id'
    rows = ['MatMulV2,10,100.5,one,AI_CORE,3,0', 'MatMulV2,30,200,two,AI_CORE,3,1', 'Add,5,130,three,AI_CORE,3,0']
    yield Seed({'op_summary_1.csv': '\r\n'.join([head, *rows, '']).encode('utf-8-sig')})


def _views(folder: Path) -> Iterator[Seed]:
    for path in sorted((RECORDED / 'msprof').rglob('trace_view.json.gz')):
        events = json.loads(gzip.decompress(path.read_bytes()))
        (hardware,) = (one['pid'] for one in events if 'Ascend Hardware' in str(one.get('args')))
        own = [one for one in events if one.get('pid') == hardware]
        about = [one for one in own if one['ph'] == 'M']
        yield Seed(
            {'trace_view.json': json.dumps([*about, *(one for one in own if one['ph'] == 'X')][:LINES]).encode()}
        )


def _folders(folder: Path) -> Iterator[Seed]:
    for rank in sorted((RECORDED / 'msprof').glob('*/rank*_ascend_pt')):
        inner = rank / 'ASCEND_PROFILER_OUTPUT'
        files = [*rank.glob('*.json'), *inner.glob('step_trace_time.csv')]
        yield Seed({f'a_ascend_pt/{path.relative_to(rank)}': path.read_bytes() for path in files})


def _nsight(folder: Path) -> Iterator[Seed]:
    kernels = [(begin, end, 0, 'saxpy(int, float, float *)', begin - 5000) for begin, end in KERNELS]
    for name, ranges in (('a_rank3.sqlite', []), ('b.sqlite', [(KERNELS[0][0] - 9000, KERNELS[-1][1], 'step 1')])):
        path = nsight(folder / name, kernels, ranges)
        yield Seed({name: path.read_bytes()})


def _flights(folder: Path) -> Iterator[Seed]:
    texts = {path.name: path.read_bytes() for path in sorted((RECORDED / 'flight').glob('*.json'))}
    yield Seed(texts)
    for name, text in texts.items():
        yield Seed({name: text})
        yield Seed({f'{Path(name).stem}.pickle': pickle.dumps(json.loads(text), 2)})


def _jobs(folder: Path) -> Iterator[Seed]:
    lines = ['dp_rank,stage,step,optype,seq_id,start_ts,duration,mc']
    for rank, step in itertools.product(range(2), range(3)):
        for at, kind in enumerate(('forward-compute', 'backward-compute', 'grads-reduce-scatter', 'optimizer')):
            lines.append(f'{rank},0,{step},{kind},0,{10 * step + at}.5,0.75,0')
    text = '\n'.join([*lines, '']).encode()
    yield Seed({'j.csv': text})
    yield Seed({'j.csv.gz': gzip.compress(text, 1)})


def _chakras(folder: Path) -> Iterator[Seed]:
    yield Seed({path.name: path.read_bytes() for path in sorted((RECORDED / 'chakra').glob('*.et'))})
    yield Seed({path.name: path.read_bytes() for path in sorted((folder / 'et').iterdir())})


def _benches(folder: Path) -> Iterator[Seed]:
    program, trace = _small()
    ranks = [trace.times_of(rank) for rank in range(program.world)]
    arrays: dict[str, Any] = {'what': np.array(f'{program.hash} 2 eager')}
    for rank, times in enumerate(ranks):
        arrays |= {f'arrive{rank}': times.arrive_KS, f'end{rank}': times.end_KS}
    arrays |= dict.fromkeys(('thread', 'process'), np.zeros((len(ranks), *ranks[0].end_KS.shape)))
    out = io.BytesIO()
    np.savez(out, **arrays)
    yield Seed({'bench.json': b'{"device": "cpu"}\n', '00000.npz': out.getvalue()})


def _checkpoints(folder: Path) -> Iterator[Seed]:
    train(TRAINED, steps=1, processes=False, checkpoint=folder / 'kept', every=1)
    (kept,) = (folder / 'kept').glob('step-*')
    # The list of torch is a pickle, which is written and never read.
    yield Seed({path.name: path.read_bytes() for path in sorted(kept.iterdir()) if path.name != '.metadata'})


def _digits(folder: Path) -> Iterator[Seed]:
    pixels, labels = bytes(range(256)) * 9 + bytes(48), bytes((1, 7, 9))
    yield Seed({
        'train-images-idx3-ubyte': bytes((0, 0, 8, 3)) + struct.pack('>3I', 3, 28, 28) + pixels,
        'train-labels-idx1-ubyte': bytes((0, 0, 8, 1)) + struct.pack('>I', 3) + labels,
    })  # fmt: skip


def _measured(folder: Path) -> Iterator[Seed]:
    for path in sorted((ROOT / 'measured_steps').rglob('*.csv')):
        yield Seed({path.name: _head(path.read_bytes(), 4)})


TO_EDIT: Final = (
    'GPUS=8\nMODEL="--num-layers 4 --hidden-size 256 --num-attention-heads 8 --seq-length 128 "\n'
    'PLAN=(--tensor-model-parallel-size 2 --pipeline-model-parallel-size 1)\n'
    'torchrun --nproc_per_node $GPUS pretrain_gpt.py $MODEL "${PLAN[@]}" --bf16 --micro-batch-size 4 \\\n'
    '    --max-position-embeddings 128 --global-batch-size 32 --vocab-size 1024 --make-vocab-size-divisible-by 1\n'
)
ANCHORS: Final = (
    'runs:\n- {schedule: s.yaml, step: 300 ms}\n- {schedule: t.yaml, step: 1.5 s}\nprofile: p.yaml\n',
    'schedule: s.yaml\nstep: 300 ms\n',
)
TREES: Final = ('simpar/document/tree.py',)
MINDSPORE: Final = tuple(
    f'simpar/importing/{name}.py' for name in ('read', 'mindspore', 'mindspore_parallel', 'python_script')
)
READERS: Final = {
    'schedule': Reader(_schedule, _schedules, TREES),
    'settings of --set': Reader(_settings, _sets, TREES),
    'Hugging Face config': Reader(_schedule, _configs, TREES),
    'module graph': Reader(_schedule, _modules, TREES),
    'profile and its tables': Reader(_profile, _profiles, ('simpar/profiles.py',)),
    'stack': Reader(lambda folder: load_stack(str(folder / 't.yaml')), _each('t.yaml', '*.yaml', STACKS), TREES),
    'order': Reader(
        lambda folder: check_order(read_csv(folder / 'order.csv')),
        _each('order.csv', '*.csv'),
        ('simpar/pipeline/checks.py',),
    ),
    'saved answer': Reader(_answers, _saved, ('simpar/document/load.py',)),
    'calibration record': Reader(
        lambda folder: calibrate(load_record(folder / 'r.json')),
        _each('r.json', 'record.json'),
        ('simpar/document/load.py',),
    ),
    'saved program': Reader(
        lambda folder: parse_program((folder / 'p.program').read_text(encoding='utf-8', errors='replace')),
        _each('p.program', 'saved.program'),
        (),
    ),
    'script or config of a launcher': Reader(_launch, _launch_files, ('simpar/importing/read.py',)),
    'settings of public files': Reader(_launch, _public, ('simpar/importing/read.py',)),
    'MindSpore script': Reader(
        partial(_launch, worker_num='8'), _each('train.py', 'train.py', TESTS / 'mindspore_scripts'), MINDSPORE
    ),
    'script to edit': Reader(
        lambda folder: onto(_gpt(), 'megatron', folder / 'r.sh'), _texts('r.sh', TO_EDIT), TREES, slow=True
    ),
    'Kineto': Reader(_recording, _kineto, ('simpar/traces/stream.py', 'simpar/traces/formats.py')),
    'tables of Ascend': Reader(_recording, _ascend, ('simpar/traces/ascend.py',)),
    'trace view of Ascend': Reader(_recording, _views, ('simpar/traces/ascend.py',)),
    'folder of a rank': Reader(_recording, _folders, ('simpar/traces/ascend.py',)),
    'database of Ascend': Reader(
        _recording, _each('', 'ascend_pytorch_profiler_0.db', RECORDED / 'msprof'), ('simpar/traces/databases.py',)
    ),
    'database of Nsight': Reader(_recording, _nsight, ('simpar/traces/databases.py',)),
    'flight recorder': Reader(_recording, _flights, ('simpar/traces/flight.py',)),
    'recorded job': Reader(lambda folder: read_job(*folder.iterdir()), _jobs, ('simpar/recording/job.py',)),
    'Chakra': Reader(read_chakra, _chakras, ('simpar/chakra.py',)),
    'journal of a sweep': Reader(_journal, _each('', 'kept.rows'), ('simpar/sweep/journal.py',)),
    'journal of a bench': Reader(_bench, _benches, ('executor/bench/ranks.py',)),
    'checkpoint': Reader(_checkpoint, _checkpoints, ('executor/checkpoint.py',)),
    'images': Reader(lambda folder: identity(str(folder)), _digits, ('executor/data.py',)),
    'own step': Reader(lambda folder: read_own_step(folder / 'o.yaml'), _texts('o.yaml', 'step: 300 ms\n'), TREES),
    'anchor': Reader(
        lambda folder: document.build(document.read(folder / 'o.yaml'), AnchorFile), _texts('o.yaml', *ANCHORS), TREES
    ),
    'measured steps': Reader(lambda folder: measured(read_rows(folder)), _measured, ('simpar/validate/rows.py',)),
}
