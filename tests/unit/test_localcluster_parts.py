"""Nodes from a description, names and ports of clusters, certificates, the keeper, and the progress display."""

from __future__ import annotations

import gc
import io
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from threading import Thread
from typing import TYPE_CHECKING

import pytest
import yaml
from cryptography import x509
from typer.testing import CliRunner

from queuectl.cli.examples import EXAMPLES
from queuectl.localcluster import (
    ClusterSpec,
    LocalClusterError,
    NodeSpec,
    NodeTaint,
    build,
    keeper,
    layout,
    nodes,
    take_down,
    versions,
)
from queuectl.localcluster.certificates import Authority
from queuectl.localcluster.commands import app
from queuectl.localcluster.progress import LineProgress
from queuectl.localcluster.supervisor import KeeperHandle

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def test_nodes_are_named_by_their_place() -> None:
    names = [one["metadata"]["name"] for one in NodeSpec(2, 1, 2, prefix="x-").documents()]
    assert names == ["x-b0-r0-h0", "x-b0-r0-h1", "x-b1-r0-h0", "x-b1-r0-h1"]


def test_an_nvlink_domain_is_a_rack_or_a_part_of_one() -> None:
    def cliques(spec: NodeSpec) -> list[str | None]:
        return [one["metadata"]["labels"].get("nvidia.com/gpu.clique") for one in spec.documents()]

    assert cliques(NodeSpec(1, 2, 2)) == ["b0-r0-c0", "b0-r0-c0", "b0-r1-c0", "b0-r1-c0"]
    assert cliques(NodeSpec(1, 1, 4, cliques_per_rack=2)) == [
        "b0-r0-c0",
        "b0-r0-c0",
        "b0-r0-c1",
        "b0-r0-c1",
    ]
    assert cliques(NodeSpec(1, 1, 1, cliques_per_rack=0)) == [None]


def test_taints_and_labels_are_those_of_the_description() -> None:
    [node] = NodeSpec(1, 1, 1, taints=(NodeTaint("gpu"),), labels=(("pool", "a"),)).documents()
    assert node["spec"]["taints"] == [{"key": "gpu", "effect": "NoSchedule", "value": ""}]
    assert node["metadata"]["labels"]["pool"] == "a"


def test_a_pool_has_its_devices_in_slices_and_its_counters_in_their_own_slice() -> None:
    slices = nodes.pool(
        "n0", nodes.gpus(5, "H100"), generation=3, per_slice=2, counters=[{"name": "c"}]
    )
    assert {one["spec"]["pool"]["resourceSliceCount"] for one in slices} == {4}
    assert {one["spec"]["pool"]["generation"] for one in slices} == {3}
    assert [len(one["spec"].get("devices", [])) for one in slices] == [0, 2, 2, 1]
    assert [d["attributes"][nodes.PCIE_ROOT]["string"] for d in slices[-1]["spec"]["devices"]] == ["pci0000:01"]  # fmt: skip


def test_a_description_of_nodes_is_read_from_a_line() -> None:
    assert NodeSpec.parse("blocks=2, racks=4,hosts=8,gpus=4,memory=2Ti") == NodeSpec(
        2, 4, 8, gpus=4, memory="2Ti"
    )
    assert NodeSpec.parse("") == NodeSpec()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("rack=4", "'rack=4' is not one of blocks, racks"),
        ("racks", "'racks' is not one of"),
        ("racks=many", "racks must be a whole number, not 'many'"),
        ("racks=0", "nodes: racks must be at least 1, not 0"),
    ],
)
def test_a_bad_description_of_nodes_is_refused_by_name(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        NodeSpec.parse(text)


def test_leases_are_renewed_less_often_when_there_are_thousands_of_nodes() -> None:
    assert ClusterSpec().effective_lease_seconds == 40
    many = ClusterSpec(nodes=(NodeSpec(5, 10, 100),))
    assert many.effective_lease_seconds == 400
    assert many.node_grace_seconds == 410
    assert ClusterSpec(lease_seconds=8).effective_lease_seconds == 8
    with pytest.raises(ValueError, match="lease_seconds must be at least 4"):
        ClusterSpec(lease_seconds=1)


def test_clusters_never_share_a_port() -> None:
    one, two = layout.create("one"), layout.create(None)
    assert not set(one.ports.values()) & set(two.ports.values())
    assert layout.find("one") == one
    assert {place.name for place in layout.find_all()} == {"one", two.name}


def test_a_port_in_use_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        monkeypatch.setattr(layout, "_PORT_RANGE", range(port, port + 30))
        assert port not in layout.create(None).ports.values()


def test_no_outgoing_connection_and_no_other_process_takes_a_port_before_its_program_listens() -> (
    None
):
    outgoing = Path("/proc/sys/net/ipv4/ip_local_port_range")
    code = "from queuectl.localcluster.layout import free_ports; print(*free_ports(400), flush=True); input()"
    with ExitStack() as running:
        others = [
            running.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", code],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for _ in range(2)
        ]
        chosen = layout.free_ports(400)
        for other in others:
            assert other.stdout is not None
            chosen += map(int, other.stdout.readline().split())
        for other in others:  # its ports are free again when it ends
            other.communicate("\n")
    assert len(chosen) == len(set(chosen)) == 1200
    first = int(outgoing.read_text().split()[0])
    assert max(chosen) < first


@pytest.mark.parametrize("name", ["", "Upper", "a/b", "..", "-a", "a" * 60])
def test_a_name_unfit_for_a_folder_is_refused(name: str) -> None:
    if name:
        with pytest.raises(LocalClusterError, match="cluster name"):
            layout.create(name)
    assert layout.find(name) is None


def test_what_is_left_of_a_cluster_can_be_removed() -> None:
    place = layout.create("wreck")
    assert take_down("wreck")
    assert not place.home.exists()
    assert not take_down("wreck")


@pytest.mark.parametrize("description", [None, "", '{"name": "half"'])
def test_a_cluster_whose_removal_was_interrupted_can_be_removed_and_created_again(
    description: str | None,
) -> None:
    """``description``: what is left of it; None = nothing."""
    place = layout.create("half")
    (place.home / "cluster.json").unlink()
    if description is not None:
        (place.home / "cluster.json").write_text(description)
    with pytest.raises(LocalClusterError, match="queuectl localcluster down --name half"):
        layout.create("half")
    runner = CliRunner()
    with pytest.raises(LocalClusterError, match="cluster half is incomplete"):
        layout.existing("half")
    assert "cluster half is incomplete" in runner.invoke(app, ["status"]).stdout
    removed = runner.invoke(app, ["down", "--name", "half"])
    assert (removed.exit_code, removed.stdout) == (0, "Cluster half is stopped.\n")
    assert layout.create("half").home == place.home


def test_all_clusters_include_those_whose_removal_was_interrupted() -> None:
    (layout.create("half").home / "cluster.json").unlink()
    whole = layout.create("whole")
    assert CliRunner().invoke(app, ["down", "--all"]).exit_code == 0
    assert not whole.home.exists()
    assert layout.names() == []


@pytest.mark.parametrize("name", ["", ".", "..", "../clusters", "one/etcd"])
def test_no_other_folder_than_that_of_a_cluster_is_removed(name: str) -> None:
    place = layout.create("one")
    (place.home / "etcd").mkdir()
    assert not take_down(name)
    assert (place.home / "etcd").exists()


def test_a_certificate_names_its_user_and_groups() -> None:
    authority = Authority.create("test")
    certificate = x509.load_pem_x509_certificate(authority.client("alice", ["a", "b"]).certificate)
    assert [(one.oid._name, one.value) for one in certificate.subject] == [
        ("commonName", "alice"),
        ("organizationName", "a"),
        ("organizationName", "b"),
    ]
    certificate.verify_directly_issued_by(
        x509.load_pem_x509_certificate(authority.pair.certificate)
    )


def test_secrets_are_readable_by_their_owner_alone(tmp_path: Path) -> None:
    pair = Authority.create("test").pair
    pair.save(tmp_path / "crt", tmp_path / "key")
    path = layout.write_kubeconfig(
        tmp_path / "config",
        cluster="c",
        server="https://s",
        authority=b"ca",
        user="u",
        identity="token",
    )
    for secret in (tmp_path / "key", path):
        assert secret.stat().st_mode & 0o777 == 0o600
    assert yaml.safe_load(path.read_text())["users"] == [{"name": "u", "user": {"token": "token"}}]


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[KeeperHandle]:
    home = tmp_path / "home"
    home.mkdir()
    one = KeeperHandle.spawn(home, remove=True)
    yield one
    one.shutdown()
    assert not home.exists()


def sleeper(supervisor: KeeperHandle, name: str = "sleeper") -> int:
    home = supervisor.directory
    return supervisor.start(name, ["/bin/sleep", "100"], env={}, cwd=home, log=home / "log")


def test_the_keeper_starts_and_ends_programs(supervisor: KeeperHandle) -> None:
    pid = sleeper(supervisor)
    assert supervisor.programs()["sleeper"].pid == pid
    with pytest.raises(LocalClusterError, match=f"sleeper is already running with pid {pid}"):
        sleeper(supervisor)
    supervisor.stop("sleeper")
    assert supervisor.programs()["sleeper"].returncode == -signal.SIGTERM
    assert sleeper(supervisor) != pid
    supervisor.kill("sleeper")
    assert supervisor.programs()["sleeper"].returncode == -signal.SIGKILL


def test_the_keeper_reports_an_action_that_fails(supervisor: KeeperHandle) -> None:
    home = supervisor.directory
    with pytest.raises(
        LocalClusterError, match=r"refused to start: FileNotFoundError: .*no-such-program"
    ):
        supervisor.start("x", [home / "no-such-program"], env={}, cwd=home, log=home / "log")
    with pytest.raises(LocalClusterError, match="no program y was started"):
        supervisor.signal("y", signal.SIGTERM)


@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
)
def test_an_interrupt_while_the_keeper_is_asked_stays_an_interrupt(tmp_path: Path) -> None:
    """Wherever it comes, be it right after a socket is made: a Ctrl-C must not turn into a keeper that does not answer."""
    supervisor, moments = KeeperHandle.spawn(tmp_path, remove=False), Random(1)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for _ in range(60):
            with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - it comes at any step
                signal.setitimer(signal.ITIMER_REAL, moments.uniform(1e-6, 4e-4))
                while True:
                    supervisor.programs()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        supervisor.shutdown()
        gc.collect()


def test_a_keeper_with_a_full_queue_of_connections_answers_later(tmp_path: Path) -> None:
    address = str(tmp_path / keeper.SOCKET)
    with socket.socket(socket.AF_UNIX) as listener, ExitStack() as waiting:
        listener.bind(address)
        listener.listen(0)
        with suppress(BlockingIOError):
            while True:
                other = waiting.enter_context(socket.socket(socket.AF_UNIX))
                other.setblocking(False)
                other.connect(address)
        answers = Thread(target=_answer_each, args=(listener,))
        answers.start()
        assert KeeperHandle(tmp_path).programs() == {}
        answers.join()


def _answer_each(listener: socket.socket) -> None:
    """Close the connections that wait, and answer the first one that sends a request."""
    time.sleep(0.05)
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(0.05)
            with suppress(TimeoutError):
                if connection.recv(1024):
                    connection.sendall(b'{"programs": {}}\n')
                    return


def test_the_end_of_the_keeper_takes_whole_process_groups(tmp_path: Path) -> None:
    supervisor = KeeperHandle.spawn(tmp_path, remove=False)
    marker = tmp_path / "child"
    script = f"sleep 100 & echo $! > {marker}; wait"
    supervisor.start(
        "shell",
        ["/bin/sh", "-c", script],
        env={"PATH": os.defpath},
        cwd=tmp_path,
        log=tmp_path / "log",
    )
    while not (marker.exists() and marker.read_text().strip()):
        time.sleep(0.01)
    child = int(marker.read_text())
    supervisor.shutdown()
    assert not running(child)
    supervisor.shutdown()


def test_a_folder_goes_though_a_program_of_another_session_still_writes_there(
    supervisor: KeeperHandle,
) -> None:
    home = supervisor.directory
    # Like a database that stops after its owner: the keeper cannot reach it, and it still writes for a moment.
    writer = "i=0; while [ $i -lt 200 ]; do i=$((i+1)); mkdir -p d/$i && : > d/$i/f || exit; done"
    supervisor.start(
        "daemon",
        ["/bin/sh", "-c", f"setsid sh -c '{writer}' & sleep 100"],
        env={"PATH": os.defpath},
        cwd=home,
        log=home / "log",
    )
    while not (home / "d" / "10").exists():
        time.sleep(0.01)
    supervisor.shutdown()
    assert not home.exists()


def running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_programs_outlive_the_thread_that_started_them_but_not_the_process(tmp_path: Path) -> None:
    script = (
        "import sys, threading, time\n"
        "from pathlib import Path\n"
        "from queuectl.localcluster.supervisor import KeeperHandle\n"
        f"home = Path({str(tmp_path)!r})\n"
        "def work():\n"
        "    supervisor = KeeperHandle.spawn(home, remove=True)\n"
        "    print(supervisor.start('s', ['/bin/sleep', '100'], env={}, cwd=home, log=home / 'log'), flush=True)\n"
        "thread = threading.Thread(target=work); thread.start(); thread.join(); time.sleep(100)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        time.sleep(0.5)
        assert running(pid)
        owner.kill()
    deadline = time.monotonic() + 5
    while (running(pid) or tmp_path.exists()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not running(pid)
    assert not tmp_path.exists()


def test_progress_has_the_current_step_the_next_step_and_a_progress_line() -> None:
    stream = io.StringIO()
    shown = LineProgress(stream, every=0)
    shown.step("Building", "starting")
    shown.tick("package a")
    shown.finish("Done.")
    lines = stream.getvalue().splitlines()
    assert lines[0] == "localcluster: Building (next: starting)"
    assert re.match(r"localcluster: Building: \d+\.\d s, package a", lines[1])
    assert lines[2] == "localcluster: Done."


def test_the_commands_refuse_bad_input_by_name() -> None:
    runner = CliRunner()
    bad = runner.invoke(app, ["up", "--nodes", "racks=x"])
    assert (bad.exit_code, bad.stderr.strip()) == (
        2,
        "error: nodes: racks must be a whole number, not 'x'",
    )
    missing = runner.invoke(app, ["down", "--name", "other"])
    assert (missing.exit_code, missing.stderr.strip()) == (
        3,
        "error: no cluster has the name other",
    )
    assert runner.invoke(app, ["status"]).stdout.strip() == "No clusters."
    operator = runner.invoke(app, ["up", "--operators", "other"])
    assert operator.stderr.startswith("error: operators: 'other' is none of training-operator")


def test_the_commands_name_the_clusters_of_the_machine() -> None:
    layout.create("one")
    runner = CliRunner()
    missing = runner.invoke(app, ["down", "--name", "other"])
    assert missing.stderr.strip() == (
        "error: no cluster has the name other; clusters of this machine: one"
    )
    with pytest.raises(LocalClusterError, match="queuectl localcluster down --name one"):
        layout.create("one")


def test_a_folder_that_cannot_be_created_is_named_with_its_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    with pytest.raises(
        LocalClusterError, match="Not a directory: set XDG_STATE_HOME to another folder"
    ):
        layout.create("one")
    monkeypatch.setenv("QUEUECTL_CACHE", "/dev/null")
    with (
        pytest.raises(
            LocalClusterError, match="Not a directory: set QUEUECTL_CACHE to another folder"
        ),
        build.locked(versions.UNITS[0], lambda: None),
    ):
        pass


def test_the_example_of_up_has_the_number_of_nodes_of_the_default() -> None:
    title, command = EXAMPLES["localcluster up"][0]
    assert (title, command) == (f"Start a cluster of {NodeSpec().count} nodes", "localcluster up")
