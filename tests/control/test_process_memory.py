"""Memory that the process has freed is returned to the operating system, although allocations between stay."""

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
