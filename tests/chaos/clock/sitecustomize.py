"""Found by the controllers of a chaos run on PYTHONPATH: their machine's clock is wrong by the seconds in a file."""

from __future__ import annotations

import os
import time
from pathlib import Path

_file = Path(os.environ["CHAOS_CLOCK"])
_true = time.time


def _jumped() -> float:
    return _true() + float(_file.read_text() or 0)  # empty while it is written


time.time = _jumped
