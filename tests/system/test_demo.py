"""The demo on a real control plane: it holds its own checks, what it prints works as printed, and nothing stays behind."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from queuectl.localcluster.versions import PROMETHEUS
from tests.system.transcript import ROOT

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]

QUEUECTL = [sys.executable, "-c", "from queuectl.cli.main import run; run()", "demo"]


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder for all state of a demo. As root the database runs as `nobody`, so others may enter it."""
    folder = Path(tempfile.mkdtemp(prefix="queuectl-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def environment(home: Path) -> dict[str, str]:
    return os.environ | {"TMPDIR": str(home), "XDG_STATE_HOME": str(home / "state")}


def left_behind(home: Path, pattern: str = "*") -> list[str]:
    """Files, and processes that name the folder."""
    clusters = home / "state" / "queuectl" / "clusters"
    files = [str(path) for path in home.glob(pattern) if path.name != "state"]
    files += [str(path) for path in clusters.glob("[!.]*")]
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    return files + [line for line in running.stdout.splitlines() if str(home) in line]


def printed_lines(output: str) -> list[str]:
    """The shell lines it printed, the one that takes everything down left out."""
    shown = output[output.index("The demo keeps running.") :]
    return [line for line in re.findall(r"^  (\S.*)$", shown, re.MULTILINE) if "--down" not in line]


REPORT = "queuectl report usage --by queue"


def promised_checks() -> list[str]:
    """The names of the demo's checks in the README."""
    text = (ROOT / "README.md").read_text()
    return re.findall(r"^(✓ .*?): ", text, re.MULTILINE)


@pytest.mark.docs
def test_every_check_holds_and_every_line_it_prints_works(home: Path):
    promised = promised_checks()
    assert len(promised) == 4
    shown = subprocess.run(
        [*QUEUECTL, "--keep"], env=environment(home), capture_output=True, text=True, check=False
    )
    try:
        assert shown.returncode == 0, shown.stdout + shown.stderr
        assert "✗" not in shown.stdout
        assert [check for check in promised if check not in shown.stdout] == []
        assert "64 of 64 GPU exporters" in shown.stdout
        bare = {
            k: v for k, v in environment(home).items() if not k.startswith(("KUBE", "QUEUECTL"))
        }
        lines = printed_lines(shown.stdout)
        assert len(lines) > 10
        # A reader pauses between the lines; queuectl needs that time to observe a job.
        script = "\n".join([*(f"{line}\nsleep 1" for line in lines), REPORT])
        tried = subprocess.run(
            ["bash", "-eo", "pipefail", "-c", script],
            env=bare,
            capture_output=True,
            text=True,
            check=False,
        )
        assert tried.returncode == 0, tried.stdout[-3000:] + tried.stderr
        assert "ShapeNeverFits" in tried.stdout
        assert "queuectl_" in tried.stdout
        assert '"gang": "idle-64"' in tried.stdout
        assert '"cluster_queue": "team-b"' in tried.stdout
        assert re.search(r"^NAMESPACE +QUEUE +WORKLOADS .* EFFICIENCY$", tried.stdout, re.MULTILINE)
        assert re.search(r"^team-b +training +8 .* \d+%$", tried.stdout, re.MULTILINE)
        again = subprocess.run(
            [*QUEUECTL, "--keep"],
            env=environment(home),
            capture_output=True,
            text=True,
            check=False,
        )
        assert (again.returncode, "queuectl demo --down" in again.stderr) == (1, True)
    finally:
        down = subprocess.run([*QUEUECTL, "--down"], env=environment(home), check=False)
    assert down.returncode == 0
    assert left_behind(home) == []


@pytest.mark.faults
@pytest.mark.parametrize(
    ("line", "number", "code"),
    [
        ("Starting etcd", signal.SIGINT, 130),
        ("busy-64", signal.SIGTERM, 130),
        ("urgent-64", signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_however_it_is_ended_nothing_is_left_behind(
    home: Path, line: str, number: signal.Signals, code: int
):
    with subprocess.Popen(
        QUEUECTL,
        env=environment(home) | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as demo:
        assert demo.stdout is not None
        said: list[str] = []
        for text in demo.stdout:
            said.append(text)
            if line in text:
                break
        else:
            pytest.fail("it ended before that line: " + "".join(said))
        demo.send_signal(number)
        demo.stdout.read()
    assert demo.returncode == code
    # After SIGKILL the keepers notice by themselves that their owner has gone; temporary files that the Kubernetes
    # client creates in the demo's own process are not removed then.
    pattern = "queuectl-*" if number is signal.SIGKILL else "*"
    deadline = time.monotonic() + 30
    while (left := left_behind(home, pattern)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert left == []


@pytest.mark.faults
def test_a_prometheus_that_does_not_come_up_ends_it_with_a_sentence(home: Path):
    programs = home / "programs"
    programs.mkdir()
    for name in ("prometheus", "promtool"):
        program = programs / name
        version = f"echo {name}, version {PROMETHEUS.reports}"
        program.write_text(
            f'#!/bin/sh\n[ "$1" = --version ] && {version} || {{ echo no space; exit 3; }}\n'
        )
        program.chmod(0o755)
    shown = subprocess.run(
        QUEUECTL,
        env=environment(home) | {"KUBEBUILDER_ASSETS": str(programs)},
        capture_output=True,
        text=True,
        check=False,
    )
    shutil.rmtree(programs)
    assert shown.returncode == 1, shown.stdout + shown.stderr
    assert "Prometheus does not start; end of its log:\n  no space" in shown.stderr
    assert "Traceback" not in shown.stderr
    assert left_behind(home) == []
