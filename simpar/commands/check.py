"""``simpar check FILE``: ranks, groups, the pipeline's actions, communication and notes; which machine can run it."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable
from math import prod
from typing import Any, Final

from simpar import files, keys, listing, metrics, pipeline
from simpar.case import Case
from simpar.commands import answers, common
from simpar.program import BYTES, Program, Role
from simpar.units import format_size

SHOWN_GROUPS: Final = 4
SHOWN_RANKS: Final = 8
SHOWN_STEPS: Final = (24, 12)
"""Pipeline ranks, and first and last steps, of the grid of actions on the screen."""
MOST_IN_PROCESS: Final = 64
MOST_STREAMS: Final = 128
"""Streams of a rank that the executor has room for."""


def check_command(options: argparse.Namespace) -> int:
    """Print what the program is; with ``--numerics`` train it in process, with ``--fake`` issue it without devices."""
    case = common.case_waited_for(options)
    with common.waiting('checking'):
        answer = to_dict(case)
    if options.program:
        from simpar.program.text import format_program

        files.write_atomically(options.program, format_program(case.program))
        answer['written'] = [str(options.program)]
    if options.ir:
        answer['written'] = [*answer.get('written', ()), *map(str, listing.write_ir(options.ir, case))]
    verb = 'numerics' if options.numerics else 'dry-run' if options.fake else ''
    # With a verb of its own the executor prints the one JSON object.
    if options.json and not verb:
        answers.print_json(answer)
        return 0
    if not options.json:
        sys.stdout.write(render(answer))
    if verb:
        # The executor writes to the same terminal; unflushed lines would come after its own.
        sys.stdout.flush()
        flags = [*(['--json'] if options.json else []), *(['--device', options.device] if options.device else [])]
        return common.start(verb, options.file, options.set, [*flags, *common.executor_flags(options)])
    return 0


def to_dict(case: Case) -> dict[str, Any]:
    """Return the program as one object, which ``--json`` prints."""
    program = case.program
    order = _order(case)
    return {
        'program': program.hash,
        'ranks': program.world,
        'cluster': case.cluster.profile.name,
        'copies': program.copies,
        'roles': [_role(program, number, staged=order is not None) for number in range(len(program.roles))],
        'partitions': {name: part.groups_GP.tolist() for name, part in program.partitions.items()},
        'actions': [[str(action) for action in row] for row in order.actions] if order else None,
        'collectives': _most(communication(program, role, 'collective') for role in program.roles),
        'strategies': listing.strategies_to_dict(case),
        'messages': _most(communication(program, role, 'send') for role in program.roles),
        'parameters': parameter_bytes(program),
        'without_effect': keys.without_effect_json(case.without_effect()),
        'notes': list(program.notes),
        'features': features(case),
        'machines': {
            'simulated': 'yes',
            'in process': 'yes' if program.world <= MOST_IN_PROCESS else f'up to {MOST_IN_PROCESS} ranks',
            'torch.distributed': _executable(program)
            or f'yes: gloo on CPUs, {program.world} processes (simpar measure)',
        },
    }


def _order(case: Case) -> pipeline.Order | None:
    """The actions with their sends and receives, of a pipeline."""
    from simpar.lower.lower import order_of, with_messages

    return with_messages(order_of(case.plan), case.plan) if metrics.is_pipeline(case.program) else None


def _role(program: Program, number: int, *, staged: bool) -> dict[str, Any]:
    role = program.roles[number]
    held = [program.tensor[name] for name in program.tensors_of_role[number]]
    answer = {
        'name': role.name,
        # Roles are shared objects, so identity is enough.
        'ranks': [rank for rank in range(program.world) if program.role(rank) is role],
        'slots': len(role),
        'streams': list(role.streams),
        'parameters': sum(program.local_bytes(tensor) for tensor in held if tensor.kind == 'parameter'),
    }
    if staged:
        answer['stages'] = {stage: _operators(program, role, stage) for stage in metrics.stages_of(program, role)}
    return answer


def _operators(program: Program, role: Role, stage: int) -> list[str]:
    """What a stage computes in the forward, layer by layer."""
    ops = (program.op_classes[index] for index in role.op_class.tolist())
    return list(
        dict.fromkeys(
            op.name.partition('.')[0]
            for op in ops
            # A name with ``@`` is another layout of a value, not a layer.
            if (op.stage, op.kind, op.phase) == (stage, 'compute', 'F') and program.sliced(op) and '@' not in op.name
        )
    )


def communication(program: Program, role: Role, kind: str) -> list[dict[str, Any]]:
    """Communication ops of a kind in a step of a role, by operator, partition and phase."""
    rows: dict[tuple[str, str, str], list[float]] = {}
    for index in role.op_class.tolist():
        op = program.op_classes[index]
        if op.kind == kind:
            rows.setdefault((op.operator, op.partition, op.phase), []).append(op.bytes)
    return [
        {'operator': operator, 'partition': partition, 'phase': phase, 'count': len(sizes), 'bytes': sum(sizes)}
        for (operator, partition, phase), sizes in sorted(rows.items())
    ]


def _most(of_roles: Iterable[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Of each kind the row of the role that moves most."""
    most: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in (row for rows in of_roles for row in rows):
        key = (row['operator'], row['partition'], row['phase'])
        # Stages differ; the busiest role is what a reader plans for.
        if key not in most or row['bytes'] > most[key]['bytes']:
            most[key] = row
    return [most[key] for key in sorted(most)]


def parameter_bytes(program: Program) -> dict[str, int]:
    """Bytes of the parameters, of the unsharded model without padding, and on the rank that holds most."""
    parameters = [tensor for tensor in program.tensors if tensor.kind == 'parameter']
    # A packed parameter counts by its members: its buffer has padding.
    members = [program.tensor[name] for tensor in parameters for name in tensor.members]
    full = [tensor for tensor in parameters if not tensor.members] + members
    unsharded = sum(prod(tensor.shape) * BYTES[tensor.dtype] for tensor in full)
    local = [
        sum(program.local_bytes(tensor) for tensor in parameters if tensor.name in held)
        for held in program.tensors_of_role
    ]
    return {'model': unsharded, 'rank': max(local)}


def features(case: Case) -> list[dict[str, str]]:
    """What the plan asks for, and which machines do it."""
    from simpar.lower.graph.record import has_strategies

    plan, program = case.plan, case.program
    with_strategies = has_strategies(case.workload, case.plan)
    by_feature = {
        'strategies of operators': with_strategies,
        f'data {plan.data}': plan.data > 1 and (plan.tensor > 1 or not with_strategies),
        f'tensor {plan.tensor}': plan.tensor > 1,
        f'context {plan.context} by {plan.context_kind}': plan.context > 1,
        f'expert {plan.expert}': plan.expert > 1,
        'sequence_parallel': plan.sequence_parallel and plan.tensor > 1,
        f'copies {plan.copies}': plan.copies > 1,
        f'micro_batches {plan.micro_batches}': plan.micro_batches > 1,
        f'tiles {plan.tiles}': plan.tiles > 1,
        'overlap passes': plan.overlap != 'default',
    }
    if metrics.is_pipeline(program):
        named = case.schedule.plan.order
        by_feature |= {
            f'order {named if not case.schedule.plan.rows else "by rows"}': True,
            f'sequence_chunks {plan.sequence_chunks}': plan.sequence_chunks > 1,
            f'receive {plan.receive}': plan.exchange == 'separate',
            f'exchange {plan.exchange}': True,
        }
    executed = _executable(program) or 'yes'
    return [
        {'feature': feature, 'simulated': 'yes', 'executable': executed} for feature, on in by_feature.items() if on
    ]


def _executable(program: Program) -> str:
    """Why no executor can run a program; nothing where it can."""
    streams = max(len(role.streams) for role in program.roles)
    return f'no: {streams} streams on a rank, room for {MOST_STREAMS}' if streams > MOST_STREAMS else ''


def render(answer: dict[str, Any]) -> str:
    """Return the answer as text for a person."""
    where = f'{answer["ranks"]} ranks of {answer["cluster"]}'
    lines = [
        f'program {answer["program"][:12]} on {where}, copies {answer["copies"]}',
        *filter(None, [keys.without_effect_line([keys.WithoutEffect(**one) for one in answer['without_effect']])]),
        *(line for role in answer['roles'] for line in _role_lines(role)),
        *_partition_lines(answer['partitions']),
        *_grid_lines(answer['actions']),
        *listing.strategy_lines(answer['strategies']),
        *_communication_lines(answer),
    ]
    size = answer['parameters']
    where = 'each rank' if len({role['parameters'] for role in answer['roles']}) == 1 else 'the fullest rank'
    lines.append(f'parameters: {format_size(size["model"])}, of which {format_size(size["rank"])} on {where}')
    lines += [f'note: {note}' for note in answer['notes']]
    lines += _feature_lines(answer['features'])
    lines += [f'{machine}: {able}' for machine, able in answer['machines'].items()]
    lines += [f'wrote {name}' for name in answer.get('written', ())]
    return '\n'.join(lines) + '\n'


def _role_lines(role: dict[str, Any]) -> list[str]:
    ranks = role['ranks']
    span = f'ranks {ranks[0]}-{ranks[-1]}' if len(ranks) > 1 else f'rank {ranks[0]}'
    lines = [f'  role {role["name"]}: {span}, {role["slots"]} ops on streams {_streams(role["streams"])}']
    for stage, operators in role.get('stages', {}).items():
        lines.append(f'    stage {stage}: {_ranges(operators)}')
    return lines


def _streams(names: list[str]) -> str:
    """Names of streams, those of sends and receives as their number."""
    # A pipeline has a stream for each neighbour and direction; their number says enough.
    own = [name for name in names if not re.match(r'pipeline\.', name)]
    others = len(names) - len(own)
    return ', '.join(own) + (f' and {others} of sends and receives' if others else '')


def _ranges(names: list[str]) -> str:
    """``layer0 layer1 layer2`` as ``layer0-2``."""
    spans: list[tuple[str, int, int]] = []
    for name in names:
        stem, number = re.fullmatch(r'(.*?)(\d*)', name).groups()  # type: ignore[union-attr]
        at = int(number) if number else -1
        # Only neighbours in order: a gap must stay visible.
        if spans and number and spans[-1][0] == stem and spans[-1][2] == at - 1:
            spans[-1] = (stem, spans[-1][1], at)
        else:
            spans.append((stem, at, at))
    return ', '.join(
        stem if first < 0 else f'{stem}{first}' if first == last else f'{stem}{first}-{last}'
        for stem, first, last in spans
    )


def _partition_lines(partitions: dict[str, list[list[int]]]) -> list[str]:
    lines = []
    for name, groups in partitions.items():
        text = ' '.join(
            '[' + ' '.join(map(str, group[:8])) + (' …' if len(group) > 8 else '') + ']'
            for group in groups[:SHOWN_GROUPS]
        )
        more = f' and {len(groups) - SHOWN_GROUPS} more' if len(groups) > SHOWN_GROUPS else ''
        lines.append(f'  partition {name}: {text}{more}')
    return lines


def _grid_lines(actions: list[list[str]] | None) -> list[str]:
    """The grid of actions, its middle left out where it is long."""
    if actions is None:
        return []
    rows = tuple(tuple(map(pipeline.parse_action, row)) for row in actions[:SHOWN_RANKS])
    heads, *grid = pipeline.draw(pipeline.Order(rows, (), 0)).splitlines()
    first, last = SHOWN_STEPS
    # One line would be saved otherwise, and one is spent on saying so.
    if len(grid) > first + last + 1:
        grid = [*grid[:first], f'... {len(grid) - first - last} more steps: see --json', *grid[-last:]]
    more = len(actions) - len(rows)
    title = 'actions of the pipeline ranks' + (f' (the first {len(rows)}; {more} more: see --json)' if more else '')
    return [f'{title}:', heads, *grid]


def _communication_lines(answer: dict[str, Any]) -> list[str]:
    lines = ['collectives of a step:'] if answer['collectives'] else ['collectives of a step: none']
    if len(answer['roles']) > 1:
        lines[0] = lines[0].replace('a step', 'a step, on the rank that moves most')
    return lines + [_row(row) for row in (*answer['collectives'], *answer['messages'])]


def _row(row: dict[str, Any]) -> str:
    what = f'{row["phase"]} {row["operator"]:<15}{row["partition"]:<8}'
    return f'  {what}{row["count"]:>5} ×  {format_size(row["bytes"])} in all'


def _feature_lines(rows: list[dict[str, str]]) -> list[str]:
    """Features that all machines do in one line, others one by one."""
    done = [row['feature'] for row in rows if row['executable'] == 'yes']
    others = [
        f'{row["feature"]}: simulated {row["simulated"]}, executable {row["executable"]}'
        for row in rows
        if row['executable'] != 'yes'
    ]
    return [*([f'simulated and executable: {", ".join(done)}'] if done else []), *others]
