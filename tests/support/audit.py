"""Whether the locked dependencies have known vulnerabilities: `python -m tests.support.audit`, as `make lint` runs it.

`uv audit` compares uv.lock with the OSV database over the network. A finding is a failure. A database that does not answer
is reported in one line and is not a failure, unless ``--required`` is given.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from uv import find_uv_bin

ROOT: Final = Path(__file__).parents[2]
_COMMAND: Final = ("audit", "--frozen", "--preview-features", "audit-command")
_NOT_ASKED: Final = ("error sending request", "Request failed", "HTTP status", "timed out")
_FAILED: Final = 2  # exit code of uv for errors


def audit(*, required: bool, service: str | None = None, project: Path = ROOT) -> int:
    """Query the database and print the findings. Returns an exit code.

    Args:
        required: a database that does not answer is a failure.
        service: URL of the database; None = the default of uv.
        project: folder of the lock file.
    """
    command = [find_uv_bin(), *_COMMAND, "--project", str(project)]
    command += ["--service-url", service] if service else []
    once = {"UV_HTTP_RETRIES": "0", "UV_HTTP_TIMEOUT": "20"}
    done = subprocess.run(
        command, cwd=project, env=os.environ | once, capture_output=True, text=True, check=False
    )
    said = (done.stdout + done.stderr).strip()
    if done.returncode != _FAILED or not any(sign in said for sign in _NOT_ASKED):
        print(said)
        return done.returncode
    why = said.splitlines()[-1].removeprefix("  cause: ")
    print(f"audit: NOT CHECKED: the vulnerability database does not answer ({why})")
    if not required:
        print("audit: run `make audit` on a network with access; it requires an answer")
    return _FAILED if required else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--required", action="store_true", help="fail if the database does not answer"
    )
    return audit(required=parser.parse_args(arguments).required)


if __name__ == "__main__":
    sys.exit(main())
