"""Freed memory is returned to the operating system, and full passes of the garbage collector examine only new objects."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from typing import Final

import pytest

CODE: Final = """
import asyncio
from pathlib import Path
from queuectl.control.process_memory import return_freed_memory

def resident():
    [line] = [one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith("RssAnon")]
    return int(line.split()[1]) / 1024

async def main():
    kept = [bytes(1000) for _ in range(100_000)]
    kept = kept[::100]  # each of these is between freed ones
    before = resident()
    task = asyncio.create_task(return_freed_memory(0.01))
    while resident() > before - 50:
        await asyncio.sleep(0.01)
    task.cancel()
    print(len(kept))

asyncio.run(main())
"""


# Only the C library of glibc has the function. Elsewhere the task has no effect, and nothing can be observed.
@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library has no malloc_trim"
)
def test_freed_memory_between_allocations_is_returned() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout == "1000\n"


PASSES: Final = """
import gc
from weakref import ref
from queuectl.control.process_memory import FullCollections

class Cycle:
    def __init__(self):
        self.me = self

def garbage_left():
    return sorted(name for name, seen in refs.items() if seen() is not None)

gc.disable()
gc.collect()
gc.freeze()  # as tune_interpreter does
collections = FullCollections()
with collections.shortened():
    used = {name: Cycle() for name in ("new", "old", "last")}
    refs = {name: ref(cycle) for name, cycle in used.items()}
    del used["new"]
    gc.collect()
    print(garbage_left())
    del used["old"]
    gc.collect()
    print(garbage_left())
    kept = [[] for _ in range(2 * gc.get_freeze_count())]
    for _ in range(3):  # the first leaves them out, the second counts them, the third examines all
        gc.collect()
    print(garbage_left())
    del used["last"]
    gc.collect()
    print(garbage_left())
    collections.collect()
    print(garbage_left())
assert not gc.callbacks
"""


def test_full_passes_examine_new_objects_until_the_objects_have_doubled() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PASSES], capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout.splitlines() == [
        "['last', 'old']",
        "['last', 'old']",
        "['last']",
        "['last']",
        "[]",
    ]
