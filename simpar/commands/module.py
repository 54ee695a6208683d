"""``--module package:function`` of the verbs that read a schedule."""

from __future__ import annotations

import argparse


def graph_of(options: argparse.Namespace) -> str:
    """The graph of the module that the flag names; empty: there is no flag."""
    if not options.module:
        return ''
    # Torch takes seconds, so nothing of it is imported without the flag.
    from simpar.torch_module.flag import imported

    return imported(options.module).model.graph_text


def module_flags(options: argparse.Namespace) -> list[str]:
    """The same flag for the executor."""
    return ['--module', options.module] if options.module else []
