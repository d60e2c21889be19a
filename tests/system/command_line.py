"""The program as a user runs it against an installation."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import yaml

from tests.support.cli import Result
from tests.system.installation import Installation


def queuectl(installation: Installation, *arguments: str, kubeconfig: Path | None = None) -> Result:
    """Run ``queuectl``, without a terminal. ``kubeconfig``: of the user; None = that of the administrator."""
    environment = {
        **os.environ,
        "QUEUECTL_SERVER": installation.controller.api,
        "KUBECONFIG": str(kubeconfig or installation.cluster.kubeconfig),
    }
    program = [str(Path(sys.executable).parent / "queuectl"), *arguments]
    done = subprocess.run(
        program,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return Result(done.returncode, done.stdout, done.stderr)


def acting_as(installation: Installation, user: str, folder: Path) -> Path:
    """A kubeconfig with which the administrator acts as a user."""
    document = yaml.safe_load(installation.cluster.kubeconfig.read_text())
    document["users"][0]["user"]["as"] = user
    path = folder / f"{user}.yaml"
    path.write_text(yaml.safe_dump(document))
    return path
