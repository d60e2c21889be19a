"""`make test-devices`: a thousand random gangs, or $GANGS of them, by $SEED."""

from __future__ import annotations

import os
import sys
import time

from tests.allocator.suite import run
from tests.system.device_cluster import NODES, device_workspace
from tests.system.installation import installed


def main() -> int:
    gangs = int(os.environ.get("GANGS") or 1000)
    seed = int(os.environ.get("SEED") or time.time())
    print(f"devices: seed {seed}, {gangs} gangs", flush=True)
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:7.1f} s  {line}", flush=True)

    with (
        installed(NODES, operators=()) as installation,
        device_workspace(installation) as workspace,
    ):
        result = run(workspace, seed, gangs, say)
    print("\n".join(result.lines()))
    return 0 if result.ok else 1


if __name__ == "__main__":
    sys.exit(main())
