"""The actions of a pipeline, read back from a program: which ops are ``2F0``, and when a rank did it.

A program holds ops, not actions. An op class knows its stage and phase, a slot its micro-batch; what is left to find is
whether a backward was done in full (B) or in two parts (I, W), and which actions overlap. The issue order shows it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from math import inf
from typing import Final

from simpar.pipeline.order import Action, Kind, overlap
from simpar.program import OpClass, Program, Role
from simpar.program.op import Phase
from simpar.trace import Trace

_KINDS: Final[dict[Phase, Kind]] = {'F': 'F', 'I': 'I', 'W': 'W'}


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """An action and the slots of the compute ops that do it, in issue order."""

    action: Action
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionSpan:
    """An action from the start of its first compute op to the end of its last, in seconds; ``slots``, those ops."""

    action: Action
    slots: tuple[int, ...]
    begin: float
    end: float


@dataclass(slots=True, eq=False)
class _Found:
    """Compute slots of one stage, phase and micro-batch."""

    stage: int
    kind: Kind
    micro_batch: int
    slots: list[int] = field(default_factory=list)


def stages_of(program: Program, role: Role) -> tuple[int, ...]:
    """The stages whose ops a role does."""
    ops = {index: program.op_classes[index] for index in set(role.op_class.tolist())}
    return tuple(sorted({op.stage for op in ops.values() if _of_a_micro_batch(program, op)}))


@lru_cache(maxsize=4)
def is_pipeline(program: Program) -> bool:
    """Whether a program has more than one stage."""
    return any(op.stage for op in program.op_classes)


def actions_of(program: Program, role: Role) -> list[Work]:
    """The actions F, B, I, W and OVERLAP_F_B of a role, in issue order.

    Where a stage has a single op of phase I or of W, a W right behind its I looks like a B and is called so, unless
    others of the role are apart. Overlapped actions of which neither has a collective to wait for are one after the
    other, and told so. Sums of gradients over ranks and updates are no actions.
    """
    found = _found(program, role)
    # A program does not say whether a backward was split; only the order of its ops tells.
    split = _split(found)
    full: dict[tuple[int, str, int], _Found] = {}
    for (stage, phase, micro_batch), work in found.items():
        kind: Kind = 'F' if phase == 'F' else work.kind if (stage, micro_batch) in split else 'B'
        # I and W of a backward that was not split are one action, B.
        joint = full.setdefault((stage, kind, micro_batch), _Found(stage, kind, micro_batch))
        joint.slots = sorted(joint.slots + work.slots)
    return _overlapped(sorted(full.values(), key=lambda work: work.slots[0]))


def action_spans(trace: Trace, rank: int, step: int = -1) -> list[ActionSpan]:
    """List when a rank did its actions in one step; spans do not overlap.

    Where the copies of a forward and of the backward right behind it interleave, the forward is told to end where the
    backward begins.
    """
    rank_times = trace.times_of(rank)
    works = actions_of(trace.program, trace.role(rank_times))
    begins = [float(rank_times.start_KS[step, work.slots[0]]) for work in works]
    # Interleaved copies would make actions overlap; rows of a picture cannot.
    limits = [*begins[1:], inf]
    return [
        ActionSpan(
            action=work.action,
            slots=work.slots,
            begin=begin,
            end=min(limit, float(rank_times.end_KS[step, list(work.slots)].max())),
        )
        for work, begin, limit in zip(works, begins, limits, strict=True)
    ]


def _of_a_micro_batch(program: Program, op: OpClass) -> bool:
    return op.kind == 'compute' and op.phase in _KINDS and program.sliced(op)


def _found(program: Program, role: Role) -> dict[tuple[int, str, int], _Found]:
    """Compute slots by stage, phase and micro-batch."""
    counted = [_of_a_micro_batch(program, op) for op in program.op_classes]
    found: dict[tuple[int, str, int], _Found] = {}
    for slot, (index, micro_batch) in enumerate(zip(role.op_class.tolist(), role.micro_batch.tolist(), strict=True)):
        if counted[index]:
            op = program.op_classes[index]
            key = (op.stage, op.part, micro_batch)
            if key not in found:
                found[key] = _Found(op.stage, _KINDS[op.part], micro_batch)
            found[key].slots.append(slot)
    return found


def _split(found: dict[tuple[int, str, int], _Found]) -> set[tuple[int, int]]:
    """The (stage, micro-batch) whose backward is done in two parts, I and W."""
    order = sorted(slot for work in found.values() for slot in work.slots)
    place = {slot: number for number, slot in enumerate(order)}
    apart, unclear, full = (set[tuple[int, int]]() for _ in range(3))
    for (stage, phase, micro_batch), weights in found.items():
        inputs = found.get((stage, 'I', micro_batch))
        # Each backward is looked at once, by its W.
        if phase != 'W':
            continue
        if inputs is None:
            unclear.add((stage, micro_batch))
        # W began before I was done: they alternate, layer by layer, which is a full backward.
        elif inputs.slots[-1] > weights.slots[0]:
            full.add((stage, micro_batch))
        else:
            # Directly behind one another; with one op each, order alone cannot tell a split backward from a full one.
            beside = place[weights.slots[0]] == place[inputs.slots[-1]] + 1
            by_chance = beside and min(len(inputs.slots), len(weights.slots)) == 1
            (unclear if by_chance else apart).add((stage, micro_batch))
    stages_full, stages_apart = ({stage for stage, _ in some} for some in (full, apart))
    # What is unclear is read as its stage's other backwards, or as the role's where the stage has none.
    return apart | {one for one in unclear if one[0] in stages_apart or (apart and one[0] not in stages_full)}


def _overlapped(works: list[_Found]) -> list[Work]:
    """Actions of different micro-batches or stages whose slots alternate become one OVERLAP_F_B."""
    done: list[Work] = []
    for work in works:
        action = Action(work.stage, work.kind, work.micro_batch)
        # The earlier action was not done when this one began: their ops alternate.
        if done and done[-1].slots[-1] > work.slots[0] and _together(done[-1].action, action):
            before = done.pop()
            # OVERLAP_F_B names the forward first, whichever began first.
            forward, backward = sorted((before.action, action), key=lambda one: one.kind != 'F')
            joint = overlap(forward, backward)
            done.append(Work(action=joint, slots=tuple(sorted((*before.slots, *work.slots)))))
        else:
            done.append(Work(action=action, slots=tuple(work.slots)))
    return done


def _together(one: Action, other: Action) -> bool:
    same = (one.stage, one.micro_batch) == (other.stage, other.micro_batch)
    return not same and not one.sub_actions and {one.kind, other.kind} in ({'F', 'B'}, {'F', 'I'})


def by_stages(program: Program) -> dict[tuple[int, ...], list[Role]]:
    """Pipeline ranks: roles by the stages that they do, in the order of the program."""
    found: dict[tuple[int, ...], list[Role]] = {}
    for role in program.roles:
        found.setdefault(stages_of(program, role), []).append(role)
    return found
