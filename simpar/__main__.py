"""``python -m simpar``."""

from simpar.cli import entry

if __name__ == '__main__':
    entry()
