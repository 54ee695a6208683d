"""What export writes goes through the readers of its launchers: `make prove NAME=parsers`.

    python -m tests.prove_parsers [deepspeed=FOLDER] [accelerate=FOLDER] [torchtitan=FOLDER] [COUNT]

FOLDER is the source of a launcher, where it is at hand: DeepSpeed's pydantic models read the JSON of drawn plans,
Accelerate's loader its YAML, and torchtitan's JobConfig its TOML (of a commit that has one: before 9810191bb). What
each line says first is which oracle ran; without a source it is the recorded keys and types
(tests/recorded/launcher_keys.csv), which the suite holds.
"""

import dataclasses
import importlib
import importlib.util
import json
import logging
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import get_type_hints

import pydantic
import tomllib

from simpar import export, load_schedule
from tests.drawn_plans import DRAWN


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


def of_torchtitan(folder: Path) -> Callable[[Path], None]:
    """Reads a TOML by the classes of torchtitan, which have a field for each key, and its type or its choices."""
    spec = importlib.util.spec_from_file_location('job_config', folder / 'torchtitan' / 'config' / 'job_config.py')
    assert spec is not None
    assert spec.loader is not None
    _stub('torchtitan')
    _stub('torchtitan.tools')
    _stub('torchtitan.tools.logging', logger=logging.getLogger('torchtitan'))
    module = importlib.util.module_from_spec(spec)
    sys.modules['job_config'] = module
    spec.loader.exec_module(module)

    def read(path: Path) -> None:
        tree = tomllib.loads(path.read_text(encoding='utf-8'))
        _known(module.JobConfig, tree, '')
        pydantic.TypeAdapter(module.JobConfig).validate_python(tree)

    return read


def _known(kind: type, tree: dict, at: str) -> None:
    """Raises ``ValueError`` for a key that a class has no field for."""
    hints = get_type_hints(kind)
    for key, value in tree.items():
        if key not in hints:
            raise ValueError(f'{at}{key} is no field of {kind.__name__}')
        if isinstance(value, dict) and dataclasses.is_dataclass(hints[key]):
            _known(hints[key], value, f'{at}{key}.')


def _stub(name: str, path: Path | None = None, **words: object) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__dict__.update(words)
    if path is not None:
        module.__path__ = [str(path)]
    sys.modules[name] = module
    return module


# Accelerate asks what is installed: it goes before DeepSpeed's package, which is none.
READERS = {'torchtitan': of_torchtitan, 'accelerate': of_accelerate, 'deepspeed': of_deepspeed}


def main(words: list[str]) -> int:
    """Prints a line for each launcher: the oracle, and how many files it takes."""
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
