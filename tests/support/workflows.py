"""``make lint-workflows``: actionlint on ``.github/workflows``. It is built from its Go module, once, in a minute."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

from queuectl.localcluster import build
from queuectl.localcluster.versions import Unit

ROOT: Final = Path(__file__).parents[2]
ACTIONLINT: Final = Unit(
    name="actionlint",
    module="github.com/rhysd/actionlint",
    version="v1.7.12",
    programs={"actionlint": "cmd/actionlint"},
    minutes=0.5,
)


def main() -> int:
    """Print the findings. Returns the exit code of actionlint."""
    program = build.program(ACTIONLINT)
    return subprocess.run([program, "-color"], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
