"""Settings of the Python interpreter for a process with one event loop, a few threads and many long-lived objects."""

from __future__ import annotations

import atexit
import gc
import sys
from typing import Final

_SWITCH_SECONDS: Final = 0.001


def tune_interpreter() -> None:
    """Shorten the pauses of the event loop, and the time of the garbage collector.

    A thread hands the interpreter over to the event loop after 1 ms instead of 5 ms.

    The program creates few reference cycles, but imports and bursts of gangs create tens of thousands of long-lived objects.
    With the default thresholds the collector used a quarter of the controller's CPU time in a burst, and a sixth of the time
    of its imports. A collection stops all threads: for about 5 ms with 10,000 new objects.

    At its end, the interpreter would look through all objects again. That took `queuectl serve` half a second of CPU time.
    """
    atexit.register(gc.freeze)
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 5, 100)
    sys.setswitchinterval(_SWITCH_SECONDS)
