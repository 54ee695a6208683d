"""Mutated inputs of every kind that simpar reads: a good file, a number of changes, and the command that reads it.

Case number n of a seed is always the same. A change is made to the text (letters, lines, the end cut off), to a value
(a number becomes none, or a hundred digits), or to a key (`--set` of any key that is documented).
"""

import gzip
import hashlib
import json
import random
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from proof import quietly

ROOT = Path(__file__).parent.parent
VALUES = (
    '0', '-1', '1', '2', '3', '7', '64', '1024', '65536', '1048576', '9223372036854775807', '1' * 100, '1e308',
    '1e-308', '-0.0', '.nan', '.inf', '-.inf', 'nan', 'inf', 'true', 'no', 'null', '~', "''", '[]', '{}', '[1, 2]',
    '[[]]', '{a: 1}', 'auto', 'none', 'full', 'balanced', 'ring', 'fused', 'late', 'cheapest', 'zb-h1', 'dualpipe',
    'v-min', 'gpipe', 'fp8', 'bf16', '"\\0"', '"\\ud800"', '😀', '../../etc/passwd', '/dev/zero', '.', '%s', '{0}',
    '$HOME', '0x1F', '1_000', '12:30', '!!python/object/apply:os.system [id]', '&a [*a]', '*missing', '<<', '? x',
    '1 GB', '-3 us', '1e999', '٣', '1 ', 'a: b: c',
)  # fmt: skip
JUNK = (*'{}[]:,#&*!|>%@`"\'\\\t\0\r ', '\u2028', '\ufeff', '😀', '---', '...', '\x1b[2J')
KEYS = re.compile(r'^\| `([a-z_.0-9]+)` \| ([^|]*) \|', re.MULTILINE)
FITTING = 0.7
"""Share of the keys that are set to a value that may fit: what is refused at once goes no further."""
SMALL = 400
"""Lines of a table that are kept, so that a case takes little time."""


@dataclass(frozen=True)
class Case:
    """One mutated input: files by name, and the words of the command; a word that begins with @ is a file's."""

    kind: str
    files: dict[str, str | bytes]
    command: tuple[str, ...]


Make = Callable[[random.Random], Case]


def case(seed: int, number: int, makers: dict[str, Make]) -> Case:
    """The case of a number; kinds take turns."""
    drawn = random.Random(f'{seed} {number}')
    kinds = sorted(makers)
    return makers[kinds[number % len(kinds)]](drawn)


def makers(sources: Path) -> dict[str, Make]:
    """Every kind of input; ``sources``, a folder with files that simpar itself has written."""
    pages = [
        (ROOT / 'docs' / name).read_text(encoding='utf-8') for name in ('proofs/all_keys.md', 'proofs/keys_network.md')
    ]
    kinds = dict(KEYS.findall('\n'.join(pages)))
    keys = sorted(kinds)
    examples = sorted((ROOT / 'examples').glob('*.yaml'))
    model = (ROOT / 'examples' / 'llama3_8b.json').read_text(encoding='utf-8')
    small = [path for path in examples if 'gpt3' not in path.name and 'deepseek' not in path.name]

    def schedule(drawn: random.Random) -> Case:
        text = drawn.choice(small).read_text(encoding='utf-8')
        return Case('schedule', {'s.yaml': mutated(drawn, text), 'llama3_8b.json': model}, _verb(drawn, []))

    def overrides(drawn: random.Random) -> Case:
        text = drawn.choice(small).read_text(encoding='utf-8')
        # Keys of a model that the file does not have are refused, whatever their value.
        model_of = {'workload.transformer.': 'transformer', 'workload.network': 'network', 'against': 'against'}
        able = [key for key in keys if all(word in text for part, word in model_of.items() if key.startswith(part))]
        words = [_set(drawn, drawn.choice(able), kinds) for _ in range(drawn.randint(1, 3))]
        return Case('keys', {'s.yaml': text, 'llama3_8b.json': model}, _verb(drawn, words))

    def mixture(drawn: random.Random) -> Case:
        wanted = [key for key in keys if re.search('expert|context|document|window|lora|rope|fp8|phase', key)]
        name = drawn.choice(['mixtral_8x7b_h100', 'context_parallel', 'llama3_8b_128k'])
        text = (ROOT / 'examples' / f'{name}.yaml').read_text(encoding='utf-8')
        words = [_set(drawn, drawn.choice(wanted), kinds) for _ in range(drawn.randint(1, 3))]
        return Case('routing, experts, context', {'s.yaml': text, 'llama3_8b.json': model}, _verb(drawn, words))

    def config(drawn: random.Random) -> Case:
        text = drawn.choice(sorted((ROOT / 'tests' / 'configs').glob('*.json'))).read_text(encoding='utf-8')
        plan = drawn.choice(['{tensor: 8, zero: 3}', '{data: 8}', '{pipeline: 2, micro_batches: 4, tensor: 4}'])
        more = f'workload: {{model: m.json, batch: 64, sequence: 1024, precision: bf16}}\nplan: {plan}\n'
        head = f'simpar: 1\ncluster: {{profile: h100-sxm-8, nodes: {drawn.choice((1, 8))}}}\n{more}'
        return Case('Hugging Face config', {'m.json': mutated(drawn, text), 's.yaml': head}, _verb(drawn, []))

    def profile(drawn: random.Random) -> Case:
        folder = drawn.choice([ROOT / 'hw_profiles' / name for name in ('h100-sxm-8', 'cpu-gloo', 'a100-sxm-8')])
        texts = {
            path.name: _head(path.read_text(encoding='utf-8')) for path in folder.iterdir() if path.suffix != '.gz'
        }
        wrong = drawn.choice(sorted(texts))
        zipped = {path.name: path.read_bytes() for path in folder.glob('*.gz')}
        files: dict[str, str | bytes] = {**texts, **zipped, wrong: mutated(drawn, texts[wrong])}
        files['s.yaml'] = (ROOT / 'examples' / 'multi_copy.yaml').read_text(encoding='utf-8')
        return Case('profile', files, ('run', '@s.yaml', '--quiet', '--set', 'cluster=@profile.yaml', '--json'))

    def stack(drawn: random.Random) -> Case:
        folder = ROOT / 'hw_profiles' / 'stacks'
        text = drawn.choice(sorted(folder.glob('*.yaml'))).read_text(encoding='utf-8')
        files = {
            't.yaml': mutated(drawn, text),
            'frameworks.csv': (folder / 'frameworks.csv').read_text(encoding='utf-8'),
        }
        files['s.yaml'] = (ROOT / 'examples' / 'transformer_h100.yaml').read_text(encoding='utf-8')
        return Case('stack', files, ('run', '@s.yaml', '--quiet', '--set', 'cluster.stack=@t.yaml'))

    def order(drawn: random.Random) -> Case:
        text = drawn.choice(sorted(sources.glob('*.csv'))).read_text(encoding='utf-8')
        files = {'order.csv': mutated(drawn, text), 's.yaml': (sources / 'pipeline.yaml').read_text(encoding='utf-8')}
        return Case('order', files, _verb(drawn, ['plan.order=order.csv']))

    def trace(drawn: random.Random) -> Case:
        texts = [path.read_text(encoding='utf-8') for path in sorted(sources.glob('trace*.json'))]
        one, other = drawn.choice(texts), drawn.choice(texts)
        files = {
            'one.json': mutated(drawn, one) if drawn.random() < 0.5 else _stretched(drawn, one),
            'other.json': other,
        }
        words = ('@one.json', '@other.json') if drawn.random() < 0.5 else ('@other.json', '@one.json')
        return Case('trace', files, ('compare', *words))

    def record(drawn: random.Random) -> Case:
        text = (sources / 'record.json').read_text(encoding='utf-8')
        return Case('calibration record', {'r.json': mutated(drawn, text)}, ('calibration', '@r.json'))

    def program(drawn: random.Random) -> Case:
        text = (sources / 'saved.program').read_text(encoding='utf-8')
        return Case('saved program', {'p.program': mutated(drawn, text)}, ('program', '@p.program'))

    def launch(drawn: random.Random) -> Case:
        path = drawn.choice(sorted((ROOT / 'tests' / 'launch_files').iterdir()))
        text = mutated(drawn, path.read_text(encoding='utf-8'))
        return Case('launch file', {path.name: text}, ('import', f'@{path.name}'))

    def steps(drawn: random.Random) -> Case:
        of_memory = drawn.random() < 0.2
        folder = ROOT / 'measured_steps' / ('memory' if of_memory else '')
        path = drawn.choice(sorted(folder.glob('*.csv')))
        head, *rows = path.read_text(encoding='utf-8').splitlines()
        text = '\n'.join([head, *drawn.sample(rows, 2)]) + '\n'
        return Case(
            'measured steps',
            {path.name: mutated(drawn, text)},
            ('validate', '--data', '@', *(['--memory'] if of_memory else [])),
        )

    made = (schedule, overrides, mixture, config, profile, stack, order, trace, record, program, launch, steps)
    return {maker.__name__: maker for maker in (*made, *_recordings(), *_kept(sources))}


def _recordings() -> tuple[Make, ...]:
    """What profilers and other people write: recordings, recorded jobs, scripts of MindSpore, an own step."""
    folder = ROOT / 'tests' / 'recorded'

    def kineto(drawn: random.Random) -> Case:
        path = drawn.choice(sorted((folder / 'kineto_cases').glob('*.json')))
        words = ('--what-if', drawn.choice(('kernel=gemm:0.8', 'host:0', 'hidden=.'))) if drawn.random() < 0.5 else ()
        return Case(
            'recording', {'r.json': mutated(drawn, path.read_text(encoding='utf-8'))}, ('trace', '@r.json', *words)
        )

    def ascend(drawn: random.Random) -> Case:
        paths = sorted((folder / 'msprof').rglob('*.csv'))
        path = drawn.choice(paths)
        text = mutated(drawn, _head(path.read_text(encoding='utf-8')))
        return Case('recording of Ascend', {path.name: text}, ('trace', f'@{path.name}'))

    def job(drawn: random.Random) -> Case:
        lines = gzip.decompress((folder / 'stragglers' / 'AR.csv.gz').read_bytes()).decode().splitlines(keepends=True)
        text = mutated(drawn, ''.join(lines if drawn.random() < 0.3 else lines[: drawn.randint(2, SMALL)]))
        scale = (
            ('--scale', drawn.choice(('data=0:0.5', 'stage=1:2', 'optype=forward-*:0'))) if drawn.random() < 0.5 else ()
        )
        return Case('recorded job', {'j.csv': text}, ('replay', '@j.csv', *scale))

    def script(drawn: random.Random) -> Case:
        path = drawn.choice(sorted((ROOT / 'tests' / 'mindspore_scripts').rglob('*.py')))
        text = path.read_text(encoding='utf-8')
        return Case(
            'MindSpore script',
            {path.name: mutated(drawn, text) if drawn.random() < 0.3 else _python(drawn, text)},
            ('import', f'@{path.name}', '--set', 'worker_num=8'),
        )

    def own(drawn: random.Random) -> Case:
        flag = drawn.choice(('--fit', '--anchor'))
        text = 'step: 300 ms\n' + ('schedule: s.yaml\n' if flag == '--anchor' else '')
        files: dict[str, str | bytes] = {'o.yaml': mutated(drawn, text)}
        files['s.yaml'] = (ROOT / 'examples' / 'transformer_h100.yaml').read_text(encoding='utf-8')
        return Case('own step', files, ('run', '@s.yaml', '--quiet', flag, '@o.yaml'))

    def onto(drawn: random.Random) -> Case:
        path = drawn.choice(sorted((ROOT / 'tests' / 'launch_files').glob('*.sh')))
        files: dict[str, str | bytes] = {'r.sh': mutated(drawn, path.read_text(encoding='utf-8'))}
        files['s.yaml'] = (ROOT / 'examples' / 'gpt3_175b.yaml').read_text(encoding='utf-8')
        return Case(
            'script to edit', files, ('export', '@s.yaml', '--to', 'megatron', '--onto', '@r.sh', '--output', '@new.sh')
        )

    return kineto, ascend, job, script, own, onto


SWAPS: Sequence[tuple[str, tuple[str, ...]]] = (
    (r'(?<![\w.])\d+(?![\w.])', ('1', '2', '3', '4', '8', '16', '32', '512', '0')),
    (r'\b(?:True|False)\b', ('True', 'False')),
    (r'\bnn\.(?:ReLU|GELU)\(\)', ('nn.ReLU()', 'nn.GELU()', 'nn.SiLU()')),
    (r'nn\.(?:SGD|Momentum|Adam)\b', ('nn.SGD', 'nn.Adam', 'nn.AdamWeightDecay')),
    (r'nn\.(?:CrossEntropyLoss|MSELoss)\b', ('nn.CrossEntropyLoss', 'nn.MSELoss')),
    (r"'(?:semi_auto|semi_auto_parallel)'", ("'semi_auto'", "'semi_auto_parallel'", "'data_parallel'")),
    (r"'(?:sharding_propagation|recursive_programming)'", ("'sharding_propagation'", "'recursive_programming'")),
)
"""What of a script has other values that are Python still: most are read to the end, or refused by their meaning."""


def _python(drawn: random.Random, text: str) -> str:
    """A script with one to three words of Python changed for others, here or wherever they stand."""
    for _ in range(drawn.randint(1, 3)):
        pattern, words = drawn.choice([one for one in SWAPS if re.search(one[0], text)])
        found, word = drawn.choice(list(re.finditer(pattern, text))), drawn.choice(words)
        if drawn.random() < 0.5:
            text = text[: found.start()] + word + text[found.end() :]
        else:
            text = re.sub(rf'(?<![\w.]){re.escape(found[0])}(?!\w)', word, text)
    return text


def _kept(sources: Path) -> tuple[Make, ...]:
    """What simpar keeps for itself: saved answers, journals, the list of a checkpoint."""
    small = (sources / 'pipeline.yaml').read_text(encoding='utf-8')

    def answer(drawn: random.Random) -> Case:
        one, other = ((sources / f'trace{number}.json').read_text(encoding='utf-8') for number in (0, 1))
        return Case(
            'saved answer', {'one.json': mutated(drawn, one), 'other.json': other}, ('diff', '@one.json', '@other.json')
        )

    def journal(drawn: random.Random) -> Case:
        text = mutated(drawn, (sources / 'kept.rows').read_text(encoding='utf-8'))
        words = ('sweep', '@s.yaml', '--sweep', 'plan.copies=1,2', '--jobs', '1', '--journal', '@kept.rows')
        return Case('journal', {'kept.rows': text, 's.yaml': small}, words)

    def checkpoint(drawn: random.Random) -> Case:
        text = mutated(drawn, json.dumps(LIST))
        digest = f'{hashlib.sha256(text.encode("utf-8", errors="surrogatepass")).hexdigest()}  simpar.json\n'
        files: dict[str, str | bytes] = {'simpar.json': text}
        if drawn.random() < 0.8:
            files['simpar.json.sha256'] = digest if drawn.random() < 0.8 else mutated(drawn, digest)
        return Case('checkpoint', files, ('checkpoint', '@simpar.json'))

    return answer, journal, checkpoint


def _verb(drawn: random.Random, overrides: Sequence[str]) -> tuple[str, ...]:
    sweep = ('sweep', '--jobs', '1', '--sweep', 'plan.copies=1,2')
    words = drawn.choice([('run', '--quiet'), ('run', '--json'), ('run',), ('check',), ('resolve',), sweep])
    sets = [word for one in overrides for word in ('--set', one)]
    return (words[0], '@s.yaml', *words[1:], *sets)


def _stretched(drawn: random.Random, text: str) -> str:
    """A trace whose times are all other ones, of a rank or of all."""
    tree = json.loads(text)
    factors = (0.0, 1e-9, 0.5, 1.3, 1e9, 1e300)
    for lane in drawn.sample(tree['lanes'], drawn.randint(1, len(tree['lanes']))):
        factor = drawn.choice(factors)
        for key, value in lane.items():
            if isinstance(value, list):
                lane[key] = [[one * factor for one in row] if isinstance(row, list) else row for row in value]
    if drawn.random() < 0.3:
        tree[drawn.choice(sorted(tree))] = drawn.choice([None, 0, '', [], {}, 'measured', 'emulated'])
    return json.dumps(tree)


def _set(drawn: random.Random, key: str, kinds: dict[str, str]) -> str:
    """A key set to a value: mostly one that its kind allows."""
    kind = kinds[key]
    if drawn.random() > FITTING:
        return f'{key}={drawn.choice(VALUES)}'
    if words := re.findall('`([^`]+)`', kind):
        return f'{key}={drawn.choice(words)}'
    if kind.startswith('true'):
        return f'{key}={drawn.choice(("true", "false"))}'
    bound = re.search(r'≤ ([\d.]+)', kind)
    if bound and drawn.random() < 0.15:
        return f'{key}={bound[1]}'
    if kind.startswith('integer'):
        return f'{key}={drawn.choice((0, 1, 2, 3, 4, 6, 8, 16, 63, 64, 1000, 4096, 65536))}'
    if kind.startswith('number'):
        return f'{key}={drawn.choice((0, 0.1, 0.5, 1, 1.5, 2, 10, 1000, 1e-6))}'
    return f'{key}={drawn.choice(VALUES)}'


def _head(text: str) -> str:
    return ''.join(text.splitlines(keepends=True)[:SMALL])


def mutated(drawn: random.Random, text: str) -> str:
    """The text with some changes, one of them at least."""
    for _ in range(1 + int(drawn.expovariate(1))):
        text = drawn.choice(CHANGES)(drawn, text)
    return text


def _value(drawn: random.Random, text: str) -> str:
    """A number or word becomes another value."""
    places = [*re.finditer(r'(?<=[:,\[ =])[\w.+-]+', text)]
    if not places:
        return text
    place = drawn.choice(places)
    return text[: place.start()] + drawn.choice(VALUES) + text[place.end() :]


def _number(drawn: random.Random, text: str) -> str:
    places = [*re.finditer(r'\d+\.?\d*', text)]
    if not places:
        return text
    place = drawn.choice(places)
    return text[: place.start()] + drawn.choice(VALUES[:16]) + text[place.end() :]


def _letter(drawn: random.Random, text: str) -> str:
    place = drawn.randrange(len(text) + 1)
    return text[:place] + drawn.choice(JUNK) + text[place + drawn.randint(0, 1) :]


def _lines(drawn: random.Random, text: str) -> str:
    """A line is lost, doubled, moved, or indented otherwise."""
    lines = text.splitlines(keepends=True) or ['']
    place = drawn.randrange(len(lines))
    what = drawn.randrange(4)
    if what == 0:
        del lines[place]
    elif what == 1:
        lines.insert(drawn.randrange(len(lines) + 1), lines[place])
    elif what == 2:
        lines.insert(drawn.randrange(len(lines)), lines.pop(place))
    else:
        lines[place] = drawn.choice(['  ', '\t', '- ', '']) + lines[place].lstrip(drawn.choice(' ~'))
    return ''.join(lines)


def _cut(drawn: random.Random, text: str) -> str:
    return text[: drawn.randrange(len(text) + 1)]


def _word(drawn: random.Random, text: str) -> str:
    """A word becomes another word of the file."""
    places = [*re.finditer(r'[A-Za-z_][\w-]+', text)]
    if not places:
        return text
    place, other = drawn.choice(places), drawn.choice(places)
    return text[: place.start()] + other.group() + text[place.end() :]


def _grow(drawn: random.Random, text: str) -> str:
    """A part of the file many times."""
    begin = drawn.randrange(len(text) + 1)
    part = text[begin : begin + drawn.randint(1, 60)]
    return text[:begin] + part * drawn.choice((2, 10, 1000)) + text[begin:]


CHANGES = (_value, _value, _value, _number, _number, _word, _word, _letter, _lines, _cut, _grow)


_CHUNK = {'offsets': [0, 0], 'sizes': [4, 4], 'file': '__0_0.distcp', 'offset': 0, 'length': 1400, 'digest': 'ab'}
LIST = {
    'format': 'simpar checkpoint 2', 'step': 3, 'seed': 0, 'program': 'f69890f1185e', 'losses': [1.5, 'NaN', 0.5],
    'tensors': {'dense1.weight': {'shape': [4, 4], 'dtype': 'float32', 'chunks': [_CHUNK]}},
    'trained': {'workload': {'model': {'layers': []}, 'batch': 4}, 'dtype': '', 'data': 'drawn'},
}  # fmt: skip
"""The list of a small checkpoint."""


def prepare(folder: Path) -> None:
    """Have simpar write the files that mutations start from: orders, traces, a program; and a calibration record."""
    from bench_record import record

    shutil.copy(ROOT / 'examples' / 'pipeline_h100.yaml', folder / 'source.yaml')
    small = (
        'simpar: 1\ncluster: {profile: cpu-gloo, devices: 4}\n'
        'workload: {batch: 64, loss: mse, network: [{dense: {in: 64, out: 64}}, {dense: {in: 64, out: 64}},'
        ' {dense: {in: 64, out: 64}}, {dense: {in: 64, out: 64}}]}\n'
        'plan: {pipeline: 2, micro_batches: 4}\n'
    )
    (folder / 'pipeline.yaml').write_text(small, encoding='utf-8')
    (folder / 'hand.csv').write_text(
        '0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n', encoding='utf-8'
    )
    for number, copies in enumerate((1, 2)):
        words = ['run', str(folder / 'pipeline.yaml'), '--quiet', '--set', f'plan.copies={copies}']
        quietly([*words, '--save', str(folder / f'trace{number}.json')])
    words = ['sweep', str(folder / 'pipeline.yaml'), '--sweep', 'plan.copies=1,2', '--jobs', '1']
    quietly([*words, '--journal', str(folder / 'kept.rows')])
    quietly(['check', str(folder / 'pipeline.yaml'), '--program', str(folder / 'saved.program')])
    (folder / 'record.json').write_text(json.dumps(record()), encoding='utf-8')
