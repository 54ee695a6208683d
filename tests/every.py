"""Which of many cases the suite takes: of random plans one of 24, of a grid some points, of a law a quarter.

`make prove NAME=every` takes all (SIMPAR_EVERY=1). What the plans cover is checked of all of them in both.
"""

import os

from hypothesis import settings

EVERY = int(os.environ.get('SIMPAR_EVERY', '24'))


def some(cases, apart=3):
    """Of cases that each say the same of another point those so far apart, from the first on."""
    return list(cases)[:: 1 if EVERY == 1 else apart]


def covering(trees):
    """Names of trees that together have every key and word that any of them has, the fullest first."""
    left = {name: set(words(tree)) for name, tree in trees.items()}
    if EVERY == 1:
        return list(left)
    names = []
    while any(left.values()):
        names.append(max(left, key=lambda name: len(left[name])))
        found = left[names[-1]].copy()
        left = {name: of - found for name, of in left.items()}
    return names


def words(tree):
    """Every key of a tree, and with its key every value that is a word."""
    if isinstance(tree, list):
        for one in tree:
            yield from words(one)
    elif isinstance(tree, dict):
        for key, value in tree.items():
            yield f'{key}: {value}' if isinstance(value, str) else key
            yield from words(value)


def draws(most, **how):
    """Settings of a law: so many draws by `make prove NAME=every`, of which the suite takes a quarter."""
    return settings(max_examples=most if EVERY == 1 else max(most // 4, 6), **how)
