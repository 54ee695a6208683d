"""What export writes goes through the readers of its launchers: `make prove NAME=parsers`.

    python -m tests.prove_parsers [deepspeed=FOLDER] [accelerate=FOLDER] [COUNT]

FOLDER is the source of a launcher, where it is at hand: DeepSpeed's pydantic models read the JSON of drawn plans, and
Accelerate's loader its YAML. What each line says first is which oracle ran; without a source it is the recorded keys
and types (tests/recorded/launcher_keys.csv), which the suite holds.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path

from simpar.exporting.export import export
from simpar.schedule import load_schedule


def of_deepspeed(folder: Path) -> Callable[[Path], None]:
    """Reads a JSON by the models of DeepSpeed, without what else its package imports."""
    root = folder / 'deepspeed'
    _stub('deepspeed', root, comm=_stub('deepspeed.comm'))
    _stub('deepspeed.utils', logger=logging.getLogger('deepspeed'))
    for part in ('runtime', 'runtime/zero', 'runtime/fp16'):
        _stub(f'deepspeed.{part.replace("/", ".")}', root / part)
    zero = importlib.import_module('deepspeed.runtime.zero.config').DeepSpeedZeroConfig
    kinds = importlib.import_module('deepspeed.runtime.precision_config')

    def read(path: Path) -> None:
        config = json.loads(path.read_text(encoding='utf-8'))
        made = zero(**config['zero_optimization'])
        assert made.stage == config['zero_optimization']['stage']
        for name, model in (('fp16', kinds.DeepSpeedFP16Config), ('bf16', kinds.DeepSpeedBF16Config)):
            assert model(**config.get(name, {})).enabled == config.get(name, {}).get('enabled', False)

    return read


def of_accelerate(folder: Path) -> Callable[[Path], None]:
    """Reads a YAML by the loader of Accelerate, which takes no key that it does not know."""
    sys.path.insert(0, str(folder / 'src'))
    load = importlib.import_module('accelerate.commands.config.config_args').load_config_from_file

    def read(path: Path) -> None:
        made = load(str(path))
        assert str(made.distributed_type).rpartition('.')[2] in ('FSDP', 'DEEPSPEED', 'MULTI_GPU')

    return read


def _stub(name: str, path: Path | None = None, **words: object) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__dict__.update(words)
    if path is not None:
        module.__path__ = [str(path)]
    sys.modules[name] = module
    return module


# Accelerate asks what is installed: it goes before DeepSpeed's package, which is none.
READERS = {'accelerate': of_accelerate, 'deepspeed': of_deepspeed}


def main(words: list[str]) -> int:
    """Prints a line for each launcher: the oracle, and how many files it takes."""
    sys.path.insert(0, str(Path(__file__).parent))
    from drawn_plans import DRAWN

    folders = dict(word.split('=', 1) for word in words if '=' in word)
    count, wrong = next((int(word) for word in words if word.isdecimal()), 40), 0
    for name, reader in READERS.items():
        if name not in folders:
            print(f'{name}: no source is given; recorded keys and types are the oracle (tests/test_export.py)')
            continue
        read, refused = reader(Path(folders[name])), []
        with tempfile.TemporaryDirectory() as folder:
            for seed in range(count):
                made = export(load_schedule(DRAWN[name](seed)), name)
                path = Path(folder) / f'file{made.suffix}'
                path.write_text(made.text, encoding='utf-8')
                try:
                    read(path)
                except (ValueError, AssertionError) as error:
                    refused.append(f'seed {seed}: {str(error)[:200]}')
        print(f'{name}: its own classes of {folders[name]} are the oracle: {count - len(refused)} of {count} taken')
        print('\n'.join(refused), end='\n' if refused else '')
        wrong += len(refused)
    return int(wrong > 0)


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
