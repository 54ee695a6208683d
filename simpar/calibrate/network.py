"""Figures of the links from a record: inside a host and across hosts, each with its latency and bandwidth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from simpar.calibrate.fit import relative_fit
from simpar.calibrate.number import MOST_RESIDUAL, Fitted, Number, inverse
from simpar.calibrate.record import CollectiveRow, Record
from simpar.calibrate.table import counted, low, usual
from simpar.cost.formula import share, steps
from simpar.hardware.net import parse_net

CROWDED: Final = 0.95
"""Share of one stream's rate that several at once must carry; below it the link is not all that they share."""


def network(record: Record) -> dict[str, Number]:
    """Latency and bandwidth of every link, and the start of a collective."""
    inside = [row for row in record.tables.collective if row.nodes == 1]
    across = [row for row in record.tables.collective if row.nodes > 1]
    if not inside or not across:
        return _link(record, inside or across)
    near = _link(record, inside)
    far = _link(record, across)
    # One library has one start: that inside of a host, where less is mixed with it.
    return near | {f'across.{key.removeprefix("links.")}': far[key] for key in far if key.startswith('links.')}


def per(record: Record) -> str:
    """What has a card of its own towards other hosts: each device, or each node, which is a host."""
    alone, together = ([row for row in record.crossing if (row.groups == 1) is one] for one in (True, False))
    if not alone or not together:
        return 'device'
    # All at once, groups take as long as one where each device has a card, and as many times as long as there are of
    # them where they share one: the bound is half way between, as ratios are. Low quantiles would miss one another.
    bound = math.sqrt(together[0].groups)
    return 'node' if together[0].seconds.median > bound * alone[0].seconds.median else 'device'


def _link(record: Record, rows: Sequence[CollectiveRow]) -> dict[str, Number]:
    """start + steps · latency + bytes over a channel / bandwidth, of all collectives that go around a ring."""
    # Other algorithms have other numbers of steps; mixed, the fit would hide the latency.
    # Which one a device's own library takes, it does not tell.
    own = record.library == 'gloo'
    rings = [row for row in rows if row.algorithm == 'ring' or (not own and row.algorithm == 'exchange')] or rows
    passed = [share('ring', row.operator, row.ranks) * row.bytes for row in rings]
    terms = [(1.0, steps('ring', row.operator, row.ranks), size) for row, size in zip(rings, passed, strict=True)]
    take = usual if record.compute == 'emulated' else low
    seconds = np.array([take(counted(row)) for row in rings])
    fit = relative_fit(terms, seconds)
    start, latency, a_byte = fit.values
    made = Fitted(fit, f'{len(rings)} collectives')
    bandwidth = inverse(a_byte, float(np.max(np.array(passed) / seconds)))
    alone = made.number(bandwidth, 'rate', negative=2 in fit.negative)
    return {
        'links.bandwidth': _at_once(record, _paced(record, alone), rows),
        'links.latency': made.number(latency, 'time', negative=1 in fit.negative),
        'library.start': made.number(start, 'time', negative=0 in fit.negative),
    }


def _paced(record: Record, alone: Number) -> Number:
    """The rate of a paced link as it was asked for, where it was found again."""
    try:
        net = parse_net(record.net)
    # A record may say anything of its network.
    except ValueError:
        return alone
    if net.kind != 'paced' or abs(alone.value / net.rate - 1) > MOST_RESIDUAL:
        return alone
    return replace(alone, value=net.rate, source=f'as --net says; {alone.source}')


def _at_once(record: Record, alone: Number, rows: Sequence[CollectiveRow]) -> Number:
    """What a link carries: of one stream, or of several at once where these carry more.

    Arguments: ``rows``, the messages on this link: several streams were those of all ranks, on the widest link.
    """
    if max(row.ranks for row in rows) < record.ranks:
        return alone
    carried = [
        (row.streams * share('ring', 'all_reduce', row.ranks) * row.bytes / low(row.seconds), row)
        for row in record.streams
    ]
    if not carried:
        return alone
    most, row = max(carried, key=lambda pair: pair[0])
    least, crowd = min(carried, key=lambda pair: pair[0])
    flags = alone.flags
    if least < CROWDED * alone.value:
        flags += (f'{crowd.streams} streams at once carry {least / alone.value:.0%} of what one does',)
    # A shaped link carries what several streams fill it with: one of them waits for its peers now and then.
    if record.net.startswith('paced') or (most <= alone.value and record.net == 'none'):
        return replace(alone, flags=flags)
    source = f'what {row.streams} streams carry at once; one alone: {alone.source}'
    return replace(alone, value=most, source=source, flags=flags)
