"""``python -m trueshift`` is the command ``trueshift``."""

import sys

from .cli import main

sys.exit(main())
