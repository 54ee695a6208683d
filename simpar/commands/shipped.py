"""The verbs on what comes with simpar: ``examples``, ``profiles``, ``schema``, and on what it wrote: ``show``.

``completion`` prints words that a shell completes: verbs, flags, and files where files are meant.
"""

import argparse
import dataclasses
import json
import sys
import textwrap
import webbrowser
from pathlib import Path
from typing import Final

from simpar import errors, files, schedule, shipped
from simpar.commands.parser import VERBS, words_of
from simpar.hardware.profile import figures_of
from simpar.profiles import load_profile, profile_names, profile_of_flag


def examples_command(options: argparse.Namespace) -> int:
    """List them, print one, or copy them."""
    wanted = [shipped.example(options.name)] if options.name else shipped.examples()
    if options.copy:
        more = [] if options.name else shipped.notebooks()
        written = [str(path) for path in shipped.copy_examples(wanted, options.copy, more)]
        print(json.dumps({'written': written}) if options.json else '\n'.join(f'wrote {path}' for path in written))
    elif options.json:
        print(json.dumps([{'name': one.name, 'about': one.about, 'path': str(one.path)} for one in wanted]))
    elif options.name:
        sys.stdout.write(wanted[0].text)
    else:
        for one in wanted:
            about = textwrap.wrap(one.about, width=96)
            print('\n'.join([one.name, *(f'    {line}' for line in about)]))
        print('\nsimpar examples NAME prints one; simpar examples --copy DIR writes all of them, and the notebooks.')
    return 0


def profiles_command(options: argparse.Namespace) -> int:
    """Print the list, or one profile."""
    if options.name is None:
        profiles = [load_profile(name) for name in profile_names()]
        rows = [
            {'name': name, 'devices': profile.devices, 'library': profile.library.name}
            for name, profile in zip(profile_names(), profiles, strict=True)
        ]
        if options.json:
            print(json.dumps(rows))
        else:
            for row in rows:
                print(f'{row["name"]:<20}{row["devices"]:>3} devices a node, {row["library"]}')
        return 0
    figures = list(figures_of(profile_of_flag(options.name, 'simpar profiles')))
    if options.json:
        print(json.dumps([{'key': key, **dataclasses.asdict(figure)} for key, figure in figures]))
        return 0
    for key, figure in figures:
        print(f'{key:<44}{figure.value:>12.6g}  {figure.grade:<11}{figure.source}')
    return 0


def schema_command(options: argparse.Namespace) -> int:
    """Print the schema."""
    del options
    print(json.dumps(schedule.schedule_schema(), indent=2))
    return 0


MOST_BYTES: Final = 2**26


def show_command(options: argparse.Namespace) -> int:
    """Open it in the user's browser; without one, say where it is."""
    try:
        text = files.read_regular(options.page, MOST_BYTES)[:200]
    except OSError as error:
        raise errors.refusal(options.page, error.strerror or str(error), 'name a page') from None
    if not text.lstrip().lower().startswith(b'<!doctype html'):
        remedy = 'write one with `simpar run FILE --html PAGE.html`'
        raise errors.refusal(options.page, 'not a page', remedy)
    address = options.page.resolve().as_uri()
    opened = webbrowser.open(address)
    print(f'opened {address}' if opened else f'no browser was found here; open {address} in one')
    return 0


def completion_command(options: argparse.Namespace) -> int:
    """Print the script; `eval "$(simpar completion bash)"` in a start-up file is enough."""
    cases = '\n'.join(f'    {verb.name}) words="{" ".join(words_of(verb.name))}" ;;' for verb in VERBS)
    text = Path(__file__).with_name('completion.bash').read_text(encoding='utf-8').rstrip()
    bash = text.replace('<<verbs>>', ' '.join(verb.name for verb in VERBS)).replace('<<cases>>', cases)
    # zsh reads bash's completions, and asks the same function.
    zsh = f'autoload -U +X bashcompinit && bashcompinit\n{bash}'
    print({'bash': bash, 'zsh': zsh, 'fish': _fish()}[options.shell])
    return 0


def _fish() -> str:
    lines = []
    for verb in VERBS:
        lines.append(f'complete -c simpar -n __fish_use_subcommand -a {verb.name} -d {_quoted(verb.help)}')
        lines += [
            f'complete -c simpar -n "__fish_seen_subcommand_from {verb.name}" -l {flag.removeprefix("--")}'
            for flag in words_of(verb.name)
            if flag.startswith('--')
        ]
    return '\n'.join(lines)


def _quoted(text: str) -> str:
    escaped = text.replace('\\', '\\\\').replace("'", "\\'")
    return f"'{escaped}'"
