"""``simpar completion SHELL``: words that a shell completes: verbs, flags, and files where files are meant."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Final

Verbs = Mapping[str, tuple[str, list[str]]]
SHELLS: Final = ('bash', 'zsh', 'fish')


def command(options: argparse.Namespace) -> int:
    """Print the script; `eval "$(simpar completion bash)"` in a start-up file is enough."""
    verbs = dict(_verbs(options.parser))
    print({'bash': _bash, 'zsh': _zsh, 'fish': _fish}[options.shell](verbs))
    return 0


def _verbs(top: argparse.ArgumentParser) -> Iterator[tuple[str, tuple[str, list[str]]]]:
    """Each verb with its help and its flags."""
    for action in top._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or '' for choice in action._choices_actions}
            for name, below in action.choices.items():
                yield name, (helps.get(name, ''), sorted(below._option_string_actions))


def _bash(verbs: Verbs) -> str:
    cases = '\n'.join(f'    {name}) words="{" ".join(flags)}" ;;' for name, (_, flags) in verbs.items())
    return f"""_simpar() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" words=""
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{' '.join(verbs)} --help --version" -- "$word"))
    return
  fi
  case "${{COMP_WORDS[1]}}" in
{cases}
  esac
  case "$word" in
    -*) COMPREPLY=($(compgen -W "$words" -- "$word")) ;;
    *) COMPREPLY=($(compgen -f -- "$word")) ;;
  esac
}}
complete -o filenames -F _simpar simpar"""


def _zsh(verbs: Verbs) -> str:
    # zsh reads bash's completions, and asks the same function.
    return f'autoload -U +X bashcompinit && bashcompinit\n{_bash(verbs)}'


def _fish(verbs: Verbs) -> str:
    lines = []
    for name, (text, flags) in verbs.items():
        lines.append(f'complete -c simpar -n __fish_use_subcommand -a {name} -d {_quoted(text)}')
        lines += [
            f'complete -c simpar -n "__fish_seen_subcommand_from {name}" -l {flag.removeprefix("--")}'
            for flag in flags
            if flag.startswith('--')
        ]
    return '\n'.join(lines)


def _quoted(text: str) -> str:
    escaped = text.replace('\\', '\\\\').replace("'", "\\'")
    return f"'{escaped}'"
