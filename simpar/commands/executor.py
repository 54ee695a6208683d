"""Starts the executor, ``python -m executor``, in a process of its own: simpar itself never imports torch."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from simpar.errors import RunFailed


def start(verb: str, file: Path, overrides: Sequence[str], flags: Sequence[str] = (), *, silent: bool = False) -> int:
    """Run one of the executor's verbs on a schedule file and return its exit code.

    Arguments: ``silent`` drops its standard output, so that ours can be one JSON object. Raises ``RunFailed`` where
    torch is not installed.
    """
    need_torch()
    settings = [word for override in overrides for word in ('--set', override)]
    command = [sys.executable, '-m', 'executor', verb, str(file), *settings, *flags, '--lifeline']
    output = subprocess.DEVNULL if silent else None
    # The executor ends with its standard input: the kernel closes it if this process is killed. So does the end of the
    # block, on Ctrl-C, and waits.
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output) as process:
        return process.wait()


def need_torch() -> None:
    """Raise ``RunFailed`` where torch is not installed."""
    # Looked up without importing it.
    if importlib.util.find_spec('torch') is None:
        raise RunFailed('torch is not installed; install the extra: pip install "simpar-parallel[torch]"')
