"""``python -m simpar``."""

import sys

from simpar.cli import main

if __name__ == '__main__':
    sys.exit(main())
