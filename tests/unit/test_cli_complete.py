"""The words that a shell offers: kinds and states without a server, names from a server, and none if it does not answer."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from queuectl.api.auth.layers import AuthenticationLayer
from queuectl.cli import complete, plugin
from queuectl.cli.main import run
from queuectl.domain.identity import Right
from queuectl.domain.jobs import PodRecord
from tests.api.serving import serving
from tests.api.signed import ADMIN, people
from tests.api.support import FixedLookout, job, live_through
from tests.doubles.store import MemoryStore
from tests.unit.test_cli_watch import FLOOR

EXAMPLES = Path(__file__).parents[2] / "docs/examples/queues.yaml"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    store = MemoryStore()
    for document in yaml.safe_load_all(EXAMPLES.read_text()):
        asyncio.run(store.put_config(document))
    labels = (("run", "one"), ("team", "nlp"))
    for change in live_through(replace(job("train"), labels=labels)):
        store._write(replace(change, after=replace(change.after, user="Jane Doe")), 1)
    pods = tuple(
        PodRecord("team-a", f"train-{rank}", f"u{rank}", 1, podset="worker", rank=rank)
        for rank in (0, 1, 10)
    )
    with serving(store, cluster_reader=FixedLookout(FLOOR, pods=pods)) as address:
        yield address


def offered(
    line: str,
    server: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kubeconfig: str = os.devnull,
) -> list[str]:
    """The words that bash offers at the end of a line."""
    for name, text in {
        "QUEUECTL_SERVER": server,
        "KUBECONFIG": kubeconfig,
        "_QUEUECTL_COMPLETE": "complete_bash",
        "COMP_WORDS": f"queuectl {line}",
        "COMP_CWORD": str(len(f"queuectl {line}".split(" ")) - 1),
    }.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setattr("sys.argv", ["queuectl"])
    with pytest.raises(SystemExit):
        run()
    printed = capsys.readouterr()
    assert not printed.err
    return [line for line in printed.out.splitlines() if line]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("get wor", ["workloads"]),
        ("get clusterq", ["clusterqueues"]),
        ("get clusterqueues tea", ["team-a", "team-b"]),
        ("get cq team-a", ["team-a"]),
        ("get workloads --state Run", ["Running"]),
        ("get workloads --state Held,Pe", ["Held,Pending"]),
        ("get workloads --cluster-queue tea", ["team-a", "team-b"]),
        ("get workloads -n team-", ["team-a", "team-b"]),
        ("get workloads --user ", ["Jane Doe"]),
        ("get workloads --user Jo", []),
        ("get nonsense ", []),
        ("describe wor", ["workload", "workloadpriorityclass"]),
        ("describe workload team-a/", ["team-a/train"]),
        ("explain team-a/tr", ["team-a/train"]),
        ("explain -n team-a tr", ["train"]),
        ("hold team-a/zz", []),
        ("stop cl", ["clusterqueue"]),
        ("stop clusterqueue tea", ["team-a", "team-b"]),
        ("drain n", ["n0", "n1"]),
        ("whatif --drain n1,n", ["n1,n0", "n1,n1"]),
        ("delete cohor", ["cohort"]),
        ("get workloads -l r", ["run=one"]),
        ("cancel -n team-a -l run=one,te", ["run=one,team=nlp"]),
        ("cancel team-a/t", ["team-a/train"]),
        ("logs team-a/train --rank 1", ["1", "10"]),
    ],
)
def test_names_come_from_the_server(
    line: str,
    expected: list[str],
    server: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert offered(line, server, monkeypatch, capsys) == expected


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        ("--context mine", ["team-a/train"]),
        ("--context other", []),
        ("--context nowhere", []),
        ("--context other --token-file token", ["team-a/train"]),
        ("--kubeconfig nowhere", []),
        # The words after an unknown option, or one without its value, are not read.
        ("--unknown --context other", []),
        ("--help=yes --context other", []),
    ],
)
def test_the_token_is_that_of_the_line(
    typed: str,
    names: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    users = {"mine": ADMIN, "other": "a-token-of-another-cluster"}
    kubeconfig = {
        "current-context": "mine",
        "contexts": [{"name": n, "context": {"user": n, "cluster": n}} for n in users],
        "users": [{"name": n, "user": {"token": token}} for n, token in users.items()],
        "clusters": [{"name": n, "cluster": {"server": f"https://{n}.example"}} for n in users],
    }
    (tmp_path / "config").write_text(yaml.safe_dump(kubeconfig))
    (tmp_path / "token").write_text(ADMIN)
    monkeypatch.chdir(tmp_path)
    store = MemoryStore()
    for change in live_through(job("train")):
        store._write(change, 1)
    with serving(store, authenticated=AuthenticationLayer(people())) as address:
        line = f"explain --server {address} {typed} tea"
        found = offered(line, "http://127.0.0.1:9", monkeypatch, capsys, "config")
    assert found == names


@pytest.mark.parametrize(
    "line", ["get workloads --cluster-queue", "get cq", "describe clusterqueue"]
)
def test_a_user_of_a_team_gets_the_cluster_queues_of_the_team(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store, access = MemoryStore(), people()
    for document in yaml.safe_load_all(EXAMPLES.read_text()):
        asyncio.run(store.put_config(document))
    for name in ("team-a", "team-b"):
        for change in live_through(job("train", namespace=name)):
            store._write(change, 1)
    access.know("of-the-tenant", "tenant", Right("list", "workloads", "team-a"))
    (tmp_path / "token").write_text("of-the-tenant")
    monkeypatch.setenv("QUEUECTL_TOKEN_FILE", str(tmp_path / "token"))
    with serving(store, authenticated=AuthenticationLayer(access)) as address:
        assert offered(f"{line} tea", address, monkeypatch, capsys) == ["team-a"]


def test_kubectl_gets_one_candidate_a_line(
    server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("_QUEUECTL_COMPLETE", "COMP_WORDS", "COMP_CWORD"):
        monkeypatch.setenv(name, "")  # so that its end restores them
    monkeypatch.setenv("QUEUECTL_SERVER", server)
    monkeypatch.setenv("KUBECONFIG", os.devnull)
    words = ["get", "workloads", "--user", "Ja"]
    monkeypatch.setattr("sys.argv", ["kubectl_complete-queuectl", *words])
    plugin.complete()
    assert capsys.readouterr().out == "Jane Doe\n:4\n"


def test_a_server_that_does_not_answer_offers_no_name_and_is_quiet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(complete, "SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert offered("explain tr", address, monkeypatch, capsys) == []
    assert offered("explain tr", "http://127.0.0.1:9", monkeypatch, capsys) == []
    assert offered("explain tr", "no address", monkeypatch, capsys) == []
