"""The flags of the verbs that predict."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

from simpar.flags.types import positive, ranks, training


def run(verb: ArgumentParser) -> None:
    """Of ``simpar run``."""
    verb.add_argument('--plot', type=Path, metavar='PNG', help='draw the timeline of plan and baseline')
    verb.add_argument('--quiet', action='store_true', help='print the headline alone')
    verb.add_argument(
        '--steps', type=positive, default=3, metavar='N', help='simulated steps; the last is told (default: 3)'
    )
    verb.add_argument(
        '--net', default='none', metavar='NET', help='predict on the network that `simpar measure --net NET` measures'
    )
    verb.add_argument('--html', type=Path, metavar='HTML', help='write the answer as one page to read and to send')
    verb.add_argument('--trace', type=Path, metavar='DIR', help='write Kineto JSON, for Perfetto and HTA')
    verb.add_argument(
        '--trace-ranks', type=ranks, default=(), metavar='N,N', help='with --trace, these ranks (default: up to 8)'
    )
    verb.add_argument('--trace-steps', type=positive, metavar='N', help='with --trace, the last N steps (default: all)')
    verb.add_argument(
        '--chakra', type=Path, metavar='DIR', help='write Chakra execution traces, NAME.RANK.et for each rank'
    )
    verb.add_argument(
        '--save', type=Path, metavar='JSON', help='write the answer for `simpar compare` and `simpar diff`'
    )
    verb.add_argument(
        '--train', action='append', default=[], type=training, metavar='KEY=VALUE',
        help='days and cost of a whole run, e.g. tokens=15T, price=2.5, mtbf=50000h; may be repeated',
    )  # fmt: skip
    verb.add_argument(
        '--fit', type=Path, metavar='FILE', help='scale one number of the stack by an own measured step: `step: 161 ms`'
    )


def check(verb: ArgumentParser) -> None:
    """Of ``simpar check``."""
    verb.add_argument(
        '--numerics', action='store_true', help='train one step in process; compare with the unsharded model'
    )
    verb.add_argument('--program', type=Path, metavar='FILE', help='write the program in its text form')
    verb.add_argument('--ir', type=Path, metavar='DIR', help="write what every rank does, as MindSpore's IR dumps read")


def sweep(verb: ArgumentParser) -> None:
    """Of ``simpar sweep``."""
    verb.add_argument(
        '--sweep', action='append', default=[], metavar='a.b=v,w', help="in place of the file's sweep; may be repeated"
    )
    verb.add_argument('--csv', type=Path, metavar='PATH', help='write the table as CSV')
    verb.add_argument('--markdown', action='store_true', help='print the table as Markdown and nothing else')
    verb.add_argument('--across', metavar='a.b', help="with --markdown: a column for each of this key's values")
    verb.add_argument('--plot', type=Path, metavar='PNG', help='draw the rows as bars')
    verb.add_argument('--jobs', type=positive, metavar='N', help='processes at once (default: all cores, if it pays)')
    verb.add_argument('--scheduler', metavar='ADDRESS', help='predict on a Dask cluster, e.g. tcp://host:8786')
    verb.add_argument(
        '--journal', type=Path, metavar='FILE', help='keep finished rows here and go on from them (default: PATH.rows)'
    )


def replay(verb: ArgumentParser) -> None:
    """Of ``simpar replay``."""
    verb.add_argument(
        'file', type=Path, metavar='FILE',
        help='recorded ops: CSV, .csv.gz or Parquet; or Chakra traces: their folder, or one of its .et files',
    )  # fmt: skip
    verb.add_argument(
        '--scale', action='append', default=[], metavar='OPS:FACTOR',
        help='what if these lasted so many times as long, e.g. data=0,stage=1,optype=forward-*:0.5; may be repeated',
    )  # fmt: skip
