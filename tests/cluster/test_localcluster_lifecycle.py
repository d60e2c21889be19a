"""A cluster leaves no process and no file, whatever ends it. A detached cluster runs until it is taken down."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from queuectl.localcluster import (
    ClusterSpec,
    LocalCluster,
    LocalClusterError,
    NodeSpec,
    take_down,
)
from queuectl.localcluster.layout import clusters

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.system, pytest.mark.faults]

TINY = ClusterSpec(nodes=(NodeSpec(1, 1, 1),), fsync=False, operators=())
# A process that starts a cluster, prints its pids, and then waits for a signal.
OWNER = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs with SIGINT ignored
from queuectl.localcluster import ClusterSpec, LocalCluster, NodeSpec
cluster = LocalCluster.start(ClusterSpec(nodes=(NodeSpec(1, 1, 1),), fsync=False, operators=()), name="owned")
print(*cluster.pids().values(), flush=True)
with cluster:
    time.sleep(300)
"""


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Clusters of these tests have a separate folder, whose name is longer than a socket address can be."""
    state = tmp_path / ("long-" * 30)
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    return state


@pytest.fixture
def owner() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def processes_of(folder: Path) -> list[str]:
    """Command lines of the processes that mention the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (
                    (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
            except OSError:
                continue
            if str(folder) in line:
                found.append(line)
    return found


def assert_nothing_left(seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and (processes_of(clusters()) or folders()):
        time.sleep(0.05)
    assert processes_of(clusters()) == []
    assert folders() == []


def folders() -> list[str]:
    return [one.name for one in clusters().iterdir() if one.is_dir()]


def test_stop_leaves_no_process_and_no_file() -> None:
    cluster = LocalCluster.start(TINY)
    pids = cluster.pids()
    assert set(pids) == {
        "etcd",
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "kwok",
    }
    cluster.stop()
    assert_nothing_left(0)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids.values())
    cluster.stop()


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_end_of_the_owner_leaves_no_process_and_no_file(
    owner: subprocess.Popen[str], ending: signal.Signals
) -> None:
    assert owner.stdout is not None
    assert len(owner.stdout.readline().split()) == 5
    assert len(processes_of(clusters())) == 6, "five components and the keeper"
    owner.send_signal(ending)
    owner.wait(10)
    assert_nothing_left(10)


def test_the_end_of_the_keeper_leaves_no_process(owner: subprocess.Popen[str]) -> None:
    assert owner.stdout is not None
    owner.stdout.readline()
    [keeper] = [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and f"keeper.py {clusters()}" in _command_line(entry)
    ]
    os.kill(keeper, signal.SIGKILL)
    deadline = time.monotonic() + 5
    while processes_of(clusters()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes_of(clusters()) == []
    assert take_down("owned"), "its remains can be removed"
    assert folders() == []


def _command_line(entry: Path) -> str:
    try:
        return (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def test_a_detached_cluster_outlives_its_creator_until_it_is_taken_down() -> None:
    command = [sys.executable, "-m", "queuectl.localcluster"]
    nodes = "--nodes=racks=1,hosts=1"
    options = ["--name=kept", nodes, "--no-fsync", "--operators="]
    subprocess.run([*command, "up", *options], check=True, capture_output=True)

    with pytest.raises(LocalClusterError, match="a cluster named kept exists already"):
        LocalCluster.start(TINY, name="kept")
    found = LocalCluster.find("kept")
    assert found.nodes.names() == ["b0-r0-h0"]
    assert not any(found.health().values())
    found.client.close()
    status = subprocess.run([*command, "status"], check=True, capture_output=True, text=True).stdout
    assert "kept" in status
    assert "healthy" in status

    subprocess.run([*command, "down", "--name=kept"], check=True, capture_output=True)
    assert_nothing_left(0)
    with pytest.raises(LocalClusterError, match="no cluster has the name kept"):
        LocalCluster.find("kept")


def test_a_failed_start_reports_the_reason_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("queuectl.localcluster.components._CONTROLLERS", ("no-such-controller",))
    with pytest.raises(
        LocalClusterError,
        match=r"kube-controller-manager ended with exit code 1(.|\n)*no-such-controller",
    ):
        LocalCluster.start(TINY)
    assert_nothing_left(0)
