"""Kinds of devices: one table, few branches, and flags that are refused with a remedy."""

import ast
from pathlib import Path

import pytest

from executor.devices import KINDS
from executor.options import parser
from simpar.errors import RunFailed, ScheduleError
from tests.code_lines import nodes

ROOT = Path(__file__).parent.parent / 'executor'
BRANCHES = ['commands.py', 'devices/__init__.py', 'options.py']
"""Files that ask for the kind of device: what a run is called, all ranks in one process, streams as threads."""


def test_no_branch_on_the_kind_of_device_but_those_that_are_listed():
    found = []
    for path in sorted(ROOT.rglob('*.py')):
        name = str(path.relative_to(ROOT))
        # The virtual accelerator tells its own tensors from those of the host.
        if name.startswith('virtual/'):
            continue
        for node in nodes(path):
            if isinstance(node, ast.Compare):
                asked = {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)}
                found += [name] * bool(asked & {'cuda', 'npu', 'virtual', 'cpu', 'nccl', 'hccl'})
    assert found == BRANCHES
    assert len(found) <= 5


def refused(*flags):
    from executor.options import check_device

    options = parser().parse_args(['run', 'job.yaml', *flags])
    with pytest.raises((ScheduleError, RunFailed)) as caught:
        check_device(options, '')
    return str(caught.value), caught.value.exit_code


@pytest.mark.parametrize('kind', [name for name, kind in KINDS.items() if not kind.graphs])
def test_graphs_are_refused_by_name(kind):
    told, code = refused('--device', kind, '--issue', 'graph')
    assert code == 2
    assert told == f'--issue graph: is not possible on {kind}, which captures none; write --issue eager'


def test_graphs_hold_no_messages_that_go_through_the_host():
    told, code = refused('--device', 'virtual', '--transport', 'gloo', '--issue', 'graph')
    assert (code, told.partition(':')[0]) == (2, '--issue graph')
    assert told.endswith('leave out --transport gloo')


def test_everything_that_does_not_go_together_is_told_at_once():
    told, code = refused(
        *('--device', 'virtual', '--transport', 'gloo', '--order', '3', '--compute', 'emulated'),
        *('--favour-communication', '--issue', 'graph'),
    )
    assert code == 2
    assert [line.partition(':')[0] for line in told.splitlines()] == [
        '--issue graph', '--order', '--compute emulated', '--favour-communication',
    ]  # fmt: skip


def test_a_shaped_network_needs_gloo():
    told, _ = refused('--device', 'virtual', '--net', 'paced:300Mbit/s,1ms')
    assert told == '--net: only messages of gloo can be held back; leave it out, or add --transport gloo'


def test_virtual_accelerators_are_no_ranks_of_a_launcher():
    from executor.options import check_device

    with pytest.raises(ScheduleError, match='torchrun has started one for each rank'):
        check_device(parser().parse_args(['run', 'job.yaml', '--device', 'virtual']), 'torchrun')


def test_a_device_that_is_not_there_is_named():
    import torch

    if torch.cuda.is_available():
        pytest.skip('this machine has the device')
    told, code = refused('--device', 'cuda')
    assert (code, told.partition(' is available')[0]) == (5, 'no device of kind cuda')
    told, code = refused('--device', 'npu')
    assert (code, told.partition(';')[0]) == (5, '--device npu needs torch_npu')
