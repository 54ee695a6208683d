"""Changes of the text of any file: letters, lines, words, numbers; keys with values; files that simpar itself writes.

The same random numbers make the same changes. `changed.py` changes what a file holds, by its form.
"""

import json
import random
import re
import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from proof import printed

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


def python(drawn: random.Random, text: str) -> str:
    """A script with one to three words of Python changed for others, here or wherever they stand."""
    for _ in range(drawn.randint(1, 3)):
        pattern, words = drawn.choice([one for one in SWAPS if re.search(one[0], text)])
        found, word = drawn.choice(list(re.finditer(pattern, text))), drawn.choice(words)
        if drawn.random() < 0.5:
            text = text[: found.start()] + word + text[found.end() :]
        else:
            text = re.sub(rf'(?<![\w.]){re.escape(found[0])}(?!\w)', word, text)
    return text


def setting(drawn: random.Random, key: str) -> str:
    """A key set to a value: mostly one that its kind allows."""
    kind = kinds()[key]
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


@cache
def kinds() -> dict[str, str]:
    """Each documented key of a schedule, and what it may be."""
    pages = (ROOT / 'docs' / 'proofs' / name for name in ('all_keys.md', 'keys_network.md'))
    return dict(KEYS.findall('\n'.join(page.read_text(encoding='utf-8') for page in pages)))


def settings(drawn: random.Random, keys: bytes) -> bytes:
    """One to three of some keys, a line each, with values."""
    able = keys.decode().split('\n')
    lines = [setting(drawn, drawn.choice(able)) for _ in range(drawn.randint(1, 3))]
    return '\n'.join(lines).encode('utf-8', errors='surrogatepass')


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
        printed([*words, '--save', str(folder / f'trace{number}.json')])
    words = ['sweep', str(folder / 'pipeline.yaml'), '--sweep', 'plan.copies=1,2', '--jobs', '1']
    printed([*words, '--journal', str(folder / 'kept.rows')])
    printed(['check', str(folder / 'pipeline.yaml'), '--program', str(folder / 'saved.program')])
    (folder / 'record.json').write_text(json.dumps(record()), encoding='utf-8')
