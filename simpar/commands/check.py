"""``simpar check FILE``: ranks, groups, collectives and notes of the program; whether each machine can run it."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from simpar.case import Case, load_case
from simpar.units import format_size

if TYPE_CHECKING:
    from simpar.program import Program

SHOWN_GROUPS = 4


def command(options: argparse.Namespace) -> int:
    """Print what the program is; with ``--numerics`` train it in process and compare with the unsharded model."""
    case = load_case(options.file, options.set)
    facts = facts_of(case)
    if options.program:
        from simpar.files import write_whole
        from simpar.program.text import format_program

        write_whole(options.program, format_program(case.program))
        facts['written'] = [str(options.program)]
    if options.json and not options.numerics:
        print(json.dumps(facts, ensure_ascii=False))
        return 0
    if not options.json:
        sys.stdout.write(screen(facts))
    if options.numerics:
        from simpar.commands.executor import start

        sys.stdout.flush()
        flags = ['--json'] if options.json else []
        return start('numerics', options.file, options.set, flags)
    return 0


def facts_of(case: Case) -> dict[str, Any]:
    """The program as one object."""
    program = case.program
    return {
        'program': program.hash,
        'ranks': program.world,
        'cluster': case.cluster.profile.name,
        'copies': program.copies,
        'roles': [
            {
                'name': role.name,
                'ranks': [rank for rank in range(program.world) if program.role(rank) is role],
                'slots': len(role),
                'streams': list(role.streams),
            }
            for role in program.roles
        ],
        'partitions': {name: part.groups_GP.tolist() for name, part in program.partitions.items()},
        'collectives': collectives(program),
        'parameters': parameter_bytes(program),
        'notes': list(program.notes),
        'machines': {
            'simulated': 'yes',
            'in process': 'yes' if program.world <= MOST_IN_PROCESS else f'up to {MOST_IN_PROCESS} ranks',
            'torch.distributed': f'yes: gloo on CPUs, {program.world} processes (simpar measure)',
        },
    }


MOST_IN_PROCESS = 64


def collectives(program: Program) -> list[dict[str, Any]]:
    """Collectives of a step of the first role, by operator, partition and phase."""
    rows: dict[tuple[str, str, str], list[float]] = {}
    role = program.roles[0]
    for index in role.op_class.tolist():
        op = program.op_classes[index]
        if op.kind == 'collective':
            rows.setdefault((op.operator, op.partition, op.phase), []).append(op.bytes)
    return [
        {'operator': operator, 'partition': partition, 'phase': phase, 'count': len(sizes), 'bytes': sum(sizes)}
        for (operator, partition, phase), sizes in sorted(rows.items())
    ]


def parameter_bytes(program: Program) -> dict[str, int]:
    """Bytes of the parameters, of the whole model and on one rank."""
    parameters = [tensor for tensor in program.tensors if tensor.kind == 'parameter']
    local = sum(program.local_bytes(tensor) for tensor in parameters)
    whole = 0
    for tensor in parameters:
        pieces = 1
        for cut in tensor.cuts:
            pieces *= program.partitions[cut.partition].size
        whole += program.local_bytes(tensor) * pieces
    return {'model': whole, 'rank': local}


def screen(facts: dict[str, Any]) -> str:
    """The facts for a person."""
    lines = [
        f'program {facts["program"][:12]} on {facts["ranks"]} ranks of {facts["cluster"]}, copies {facts["copies"]}'
    ]
    for role in facts['roles']:
        ranks = role['ranks']
        span = f'ranks {ranks[0]}-{ranks[-1]}' if len(ranks) > 1 else f'rank {ranks[0]}'
        lines.append(f'  role {role["name"]}: {span}, {role["slots"]} ops on streams {", ".join(role["streams"])}')
    for name, groups in facts['partitions'].items():
        shown = ' '.join(
            '[' + ' '.join(map(str, group[:8])) + (' …' if len(group) > 8 else '') + ']'
            for group in groups[:SHOWN_GROUPS]
        )
        more = f' and {len(groups) - SHOWN_GROUPS} more' if len(groups) > SHOWN_GROUPS else ''
        lines.append(f'  partition {name}: {shown}{more}')
    lines += ['collectives of a step:'] if facts['collectives'] else ['collectives of a step: none']
    for row in facts['collectives']:
        what = f'{row["phase"]} {row["operator"]:<15}{row["partition"]:<8}'
        lines.append(f'  {what}{row["count"]:>5} ×  {format_size(row["bytes"])} in all')
    size = facts['parameters']
    lines.append(f'parameters: {format_size(size["model"])}, of which {format_size(size["rank"])} on each rank')
    lines += [f'note: {note}' for note in facts['notes']]
    lines += [f'{machine}: {answer}' for machine, answer in facts['machines'].items()]
    lines += [f'wrote {name}' for name in facts.get('written', ())]
    return '\n'.join(lines) + '\n'
