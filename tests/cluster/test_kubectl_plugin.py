"""``kubectl queuectl``: kubectl finds the program as its plugin, and completes its commands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from queuectl.localcluster import build, versions

pytestmark = pytest.mark.system


def kubectl(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the kubectl of the control plane with the scripts of this environment on its path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        [build.program(versions.kubectl()), *arguments],
        env=os.environ | {"PATH": path, "KUBECONFIG": "/nowhere"},
        check=False,
        capture_output=True,
        text=True,
    )


def test_kubectl_runs_it_as_a_plugin() -> None:
    done = kubectl("queuectl", "get", "workloads", "--server", "http://127.0.0.1:9")
    assert done.returncode == 1
    assert "no answer from http://127.0.0.1:9" in done.stderr
    assert kubectl("queuectl", "top", "--help").stdout.startswith("Usage: kubectl queuectl top ")


def test_kubectl_completes_its_commands_and_options() -> None:
    assert kubectl("__complete", "queuectl", "expl").stdout == "explain\n:4\n"
    assert "--watch\n" in kubectl("__complete", "queuectl", "get", "--w").stdout
    assert kubectl("__complete", "queuectl", "apply", "-f", "").stdout == ":0\n"
