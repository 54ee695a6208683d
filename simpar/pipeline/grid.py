"""Drawings of orders: torch's grid of steps × ranks, with the place of a fault."""

from __future__ import annotations

from collections.abc import Collection

from simpar.pipeline.order import Order


def draw(order: Order, here: Collection[tuple[int, int]] = (), around: int | None = None) -> str:
    """A grid of actions: one line for each step, one column for each pipeline rank, as in torch's errors.

    Arguments: ``here``, (rank, step) of what is wrong: those lines end in ``<-- here`` and the rank; ``around``, draw
    only so many lines before and behind them (all, unless given). A step is a position in a rank's list, no time:
    actions of one line do not run at the same time.
    """
    steps = max([0, *(len(row) for row in order.actions), *(position + 1 for _, position in here)])
    shown = [step for step in range(steps) if around is None or any(abs(step - at) <= around for _, at in here)]
    columns = [[str(row[step]) if step < len(row) else '' for step in shown] for row in order.actions]
    heads = [f'Rank {rank}' for rank in range(order.ranks)]
    widths = [max(map(len, [head, *column])) for head, column in zip(heads, columns, strict=True)]
    # Zeros in front, as torch writes them, keep columns straight.
    labels = [f'Step {step:0{len(str(max(0, steps - 1)))}}: ' for step in shown]
    lines = [' ' * len(labels[0] if labels else '') + _row(heads, widths)]
    for line, (step, label) in enumerate(zip(shown, labels, strict=True)):
        ranks = sorted(rank for rank, at in here if at == step)
        mark = f' <-- here, rank {", ".join(map(str, ranks))}' if ranks else ''
        if line and shown[line - 1] != step - 1:
            lines.append('...')
        # Trailing blanks are kept where a mark follows, so that marks stand in a column.
        lines.append(label + _row([column[line] for column in columns], widths, keep=bool(mark)) + mark)
    return '\n'.join(lines)


def _row(cells: list[str], widths: list[int], keep: bool = False) -> str:
    text = ' '.join(f'{cell:<{width}}' for cell, width in zip(cells, widths, strict=True))
    return text if keep else text.rstrip()
