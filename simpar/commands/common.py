"""What verbs share: the case of a file, one JSON object or text, networks, pictures, and the executor.

The executor, ``python -m executor``, runs in a process of its own: simpar itself never imports torch.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from simpar.case import Case, case_of, cluster_of
from simpar.commands.progress import waiting
from simpar.errors import Problem, RunFailed, ScheduleError
from simpar.hardware.net import Net, parse_net
from simpar.schedule import Schedule, load_schedule
from simpar.size import at_most, parse_limit

PICTURES: Final = ('.png', '.svg', '.pdf')


def print_json(value: object) -> None:
    """One JSON object and nothing else; numbers that are not finite are a mistake of ours."""
    print(json.dumps(value, ensure_ascii=False, allow_nan=False))


def print_answer(options: argparse.Namespace, as_dict: Callable[[], Any], as_text: Callable[[], str]) -> None:
    """An answer for programs with ``--json``, or for a person."""
    if options.json:
        print_json(as_dict())
    else:
        sys.stdout.write(as_text())


def check_picture(path: Path | None) -> None:
    """Refuse a name of a picture whose format is not ours; raises ``ScheduleError``."""
    # matplotlib knows more formats, but these look the same everywhere.
    if path and path.suffix not in PICTURES:
        what = f'not a kind of picture (got {path})'
        raise ScheduleError(Problem('--plot', what, f'write a name that ends in {", ".join(PICTURES)}'))


def make_folders(*paths: Path | None) -> None:
    """Make the folders of files that are written later, before the work of minutes."""
    for path in paths:
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)


def schedule_text(options: argparse.Namespace) -> str:
    """The file of a verb with what replaces values of it, as a page shows it."""
    words = ''.join(f'# --set {word}\n' for word in options.set)
    return f'{words}{options.file.read_text(encoding="utf-8")}'


def case_waited_for(options: argparse.Namespace) -> Case:
    """The case of a verb's file and flags; where it takes long, it is told for how long."""
    with waiting('preparing') as told:
        schedule = load_schedule(options.file, options.set, module=graph_of(options))
        limit = parse_limit(options.limit)
        most = most_seconds(schedule)
        # A bound above the limit is a coarse one: whether it is refused is found out now.
        told.most = most if most <= limit.seconds else 0.0
        return case_of(schedule, limit=limit)


def most_seconds(schedule: Schedule) -> float:
    """A bound on the seconds of a prediction; 0 where a search of strategies comes first, whose length nobody knows."""
    if schedule.plan.search != 'none':
        return 0.0
    baseline = schedule.baseline()
    ranks = cluster_of(schedule).world
    return sum(at_most(one, ranks).seconds for one in (schedule, *([baseline] if baseline else [])))


def graph_of(options: argparse.Namespace) -> str:
    """The graph of the module that the flag names; empty: there is no flag."""
    if not options.module:
        return ''
    # Torch takes seconds, so nothing of it is imported without the flag.
    from simpar.torch_module.from_module import imported

    return imported(options.module).model.graph_text


def executor_flags(options: argparse.Namespace) -> list[str]:
    """Flags that the executor has, too, as it takes them."""
    module = ['--module', options.module] if options.module else []
    return [*module, *(word for limit in options.limit for word in ('--limit', limit))]


def net_of(options: argparse.Namespace) -> Net:
    """The network; what is wrong with it stands at its flag."""
    try:
        return parse_net(options.net)
    except ValueError as error:
        raise ScheduleError(Problem('--net', str(error))) from None


def predicted_net(case: Case, net: Net) -> str:
    """The network that a prediction is for, as ``--net`` writes it: the shaped one, else the profile's."""
    if net.shaped:
        return net.flag
    try:
        return parse_net(case.cluster.profile.net or 'none').flag
    # A profile may say anything of a network that is none of ours.
    except ValueError:
        return ''


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
