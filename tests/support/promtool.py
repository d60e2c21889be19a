"""The real promtool."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

from queuectl.localcluster import build
from queuectl.localcluster.versions import PROMTOOL
from tests.support.metricnames import ROOT


@cache
def _program() -> Path:
    return build.program(PROMTOOL)


def promtool(*arguments: str | Path, text: str = "") -> tuple[int, str]:
    """Run it in the folder of the project with ``text`` as standard input. Returns the exit code and the output."""
    done = subprocess.run(
        [_program(), *arguments], input=text, capture_output=True, text=True, check=False, cwd=ROOT
    )
    return done.returncode, done.stdout + done.stderr
