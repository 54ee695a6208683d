"""``python -m executor.evidence`` does what ``python -m executor.validation`` does."""

from __future__ import annotations

import sys

from executor.validation.__main__ import main

if __name__ == '__main__':
    sys.exit(main())
