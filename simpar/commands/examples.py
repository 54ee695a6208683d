"""``simpar examples [NAME] [--copy DIR]``: the schedules that come with simpar, to read, to copy and to change.

All of them are copied with the notebooks.
"""

from __future__ import annotations

import argparse
import json
import sys

from simpar.shipped import copy_examples, example, examples, notebooks


def command(options: argparse.Namespace) -> int:
    """List them, print one, or copy them."""
    wanted = [example(options.name)] if options.name else examples()
    if options.copy:
        more = [] if options.name else notebooks()
        written = [str(path) for path in copy_examples(wanted, options.copy, more)]
        print(json.dumps({'written': written}) if options.json else '\n'.join(f'wrote {path}' for path in written))
    elif options.json:
        print(json.dumps([{'name': one.name, 'about': one.about, 'path': str(one.path)} for one in wanted]))
    elif options.name:
        sys.stdout.write(wanted[0].text)
    else:
        import textwrap

        for one in wanted:
            about = textwrap.wrap(one.about, width=96)
            print('\n'.join([one.name, *(f'    {line}' for line in about)]))
        print('\nsimpar examples NAME prints one; simpar examples --copy DIR writes all of them, and the notebooks.')
    return 0
