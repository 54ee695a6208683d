# ruff: noqa: E501 (cells of a table)
"""How the messages of `tests/mistakes` were graded by hand: what was mended, and what is still weak."""

MENDED = {
    'module: a branch on data': 'named `transformer: moe`, which is no key; it says now to write a transformer with experts',
    'diff of a YAML': 'said "invalid JSON"; it says now that the file is no saved answer, and how one is written',
    'diff of what is missing': 'said no remedy; it says now to check the path',
    'steps 0': 'proposed the flag that was written; it does so no longer',
    'trace ranks misspelt': 'the same',
    'train: tokens as text': 'the same',
    'html into a file as folder': 'said "File exists"; it says now that a file is where a folder is wanted',
    'config.json: unknown key that matters': 'was told in a note, which `--quiet` left out; it is told on the standard error now',
    'a weights file as config': 'spoke of text in UTF-8; it names config.json now',
    'import: unknown cluster': 'called the place `cluster`, a key that no file has; it says `--cluster` now',
    'init: unknown cluster': 'the same',
    'profiles: misspelt': 'the same, where the place is the command',
    'schedule: two models': 'told what each of the models lacks; it says now that there are two',
    'schedule: sweep misspelt': 'with `--quiet`, `run` did not say that it leaves the sweep out; `simpar sweep` names the key',
    'config.json: the name of a model on the hub': 'said that a folder is missing; it says now that the hub is not asked',
    'config.json: of text and images': 'proposed other models; it says now to take its `text_config`',
    'module: its function wants an argument': 'said to call it in Python; it says now to write a function without arguments',
    'module: a class, not a module': 'said that a tuple is returned; it says now to call the class',
    'module: a shape that depends on data': 'was an internal error (exit 70); it names the line and what to write',
    'module: one input too many': 'pointed into a file of Python itself; it names the module now',
    'cluster: a link as a bandwidth': 'asked for a number; it says now that the number is a factor',
    'save into a folder': 'said "Device or resource busy"; it says now that a folder is no file',
    'measure: no such device': 'printed the usage of another command; it names the four devices now',
    'import: --save of a schedule': 'said to leave it out; it says now to write `--output`',
    'import: --for a schedule that is missing': 'said that the script is no recording, not what the flag is of',
    'import: a trace of nothing': 'said no remedy; it says now to record a step',
    'a profile: a schedule in its place': 'listed what a profile has and the schedule lacks; it says now that it is a schedule',
    'cluster: a list of two': 'asked for text; it says now that all devices are of one kind',
    'planner: a gap in percent': 'gave the bounds alone; it says now that 5 % is written 0.05',
    'init: a batch in words': 'named a function of ours; it says now what to write',
    "a model's config in place of the schedule": 'called every key of the config unknown; it says now what the file is, and how one writes a schedule of it',
    'calibrate: a profile over the schedule': 'measured for minutes, and would have written over the schedule; refused now before',
}
"""By mistake: what the message said, and says."""

WEAK: dict[str, str] = {}
"""By mistake: what is still weak."""
