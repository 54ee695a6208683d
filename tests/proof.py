"""What every proof has: its flags, the commit that it proves, and how its page begins."""

import argparse
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent


def arguments(doc, *positional, **flags):
    """The flags of a proof, as `argparse` has them.

    Arguments: ``positional``, keywords of `add_argument` with a ``name`` each; ``flags``, names with _ for - and a
    default, (default, help) or keywords. Of False there is a switch, of a class a value that may be left out.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for one in positional:
        parser.add_argument(one.pop('name'), **one)
    for name, value in flags.items():
        default, words = value if isinstance(value, tuple) else (value, None)
        flag = f'--{name.replace("_", "-")}'
        if isinstance(default, dict):
            parser.add_argument(flag, **default)
        elif default is False:
            parser.add_argument(flag, action='store_true', help=words)
        elif isinstance(default, type):
            parser.add_argument(flag, type=default, help=words)
        else:
            shown = ' '.join([words or '', f'(default: {default})']).strip()
            parser.add_argument(flag, type=type(default), default=default, help=shown)
    return parser.parse_args()


def commit(*paths):
    """The commit at the head in short, or the last that changed some paths; 'unknown' where there is none."""
    words = ['git', 'log', '-1', '--format=%h', '--', *paths]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip() or 'unknown'


def page_head(name, **facts):
    """How a page begins: tests/pages/NAME.md with its facts and the commit."""
    return (ROOT / 'tests' / 'pages' / f'{name}.md').read_text(encoding='utf-8').format(**{'commit': commit(), **facts})
