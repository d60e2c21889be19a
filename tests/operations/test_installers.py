"""The wheel installs by pip, pipx and uv, with and without an extra."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from uv import find_uv_bin

from queuectl.distribution import version
from tests.packaging.versions import ROOT

pytestmark = [pytest.mark.operations, pytest.mark.timeout(600)]


def run(*command: str | Path, **settings: str) -> str:
    """The output of a program that succeeds."""
    done = subprocess.run(
        [str(word) for word in command],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | settings,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(find_uv_bin(), "build", "--wheel", "--out-dir", folder, ROOT)
    [built] = folder.glob("queuectl_k8s-*.whl")
    return built


def works(program: Path, planner: bool) -> None:
    """The program of an installation answers, and plans if it has the extra."""
    assert run(program, "version") == f"queuectl {version()}\n"
    if planner:
        assert "pending" in run(program, "plan", "-f", ROOT / "docs/examples/waiting.yaml")


@pytest.mark.parametrize("extra", ["", "[planner]"])
def test_pip_installs_the_wheel(wheel: Path, tmp_path: Path, extra: str) -> None:
    run(sys.executable, "-m", "venv", tmp_path)
    run(tmp_path / "bin/python", "-m", "pip", "install", f"{wheel}{extra}")
    works(tmp_path / "bin/queuectl", bool(extra))


@pytest.mark.parametrize("extra", ["", "[planner]"])
def test_pipx_installs_the_wheel(wheel: Path, tmp_path: Path, extra: str) -> None:
    place = {"PIPX_HOME": str(tmp_path / "home"), "PIPX_BIN_DIR": str(tmp_path / "bin")}
    run(sys.executable, "-m", "pipx", "install", f"{wheel}{extra}", **place)
    works(tmp_path / "bin/queuectl", bool(extra))


@pytest.mark.parametrize("extra", ["", "[planner]"])
def test_uv_installs_the_wheel_as_a_tool(wheel: Path, tmp_path: Path, extra: str) -> None:
    place = {"UV_TOOL_DIR": str(tmp_path / "tools"), "UV_TOOL_BIN_DIR": str(tmp_path / "bin")}
    run(find_uv_bin(), "tool", "install", "--python", sys.executable, f"{wheel}{extra}", **place)
    works(tmp_path / "bin/queuectl", bool(extra))
