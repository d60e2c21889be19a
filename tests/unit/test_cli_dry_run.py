"""Each command that writes has ``--dry-run``, except for a few, and with it nothing is written: no row, no command, no line of the audit log."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from queuectl.api.auth.layers import AuthenticationLayer
from queuectl.cli.commands import COMMANDS
from queuectl.domain.identity import Right
from queuectl.objects.configuration.owners import Owner
from tests.api.serving import serving
from tests.api.signed import people
from tests.api.support import (
    DOCUMENTS,
    LIVES,
    QUEUE_PATH,
    FixedClusterReader,
    FixedDiagnoser,
    job,
    live_through,
)
from tests.doubles.store import MemoryDatabase, MemoryStore
from tests.planner.build import node, world
from tests.support.cli import queuectl_with
from tests.support.pages import PAGES

READS: Final = {
    *("get", "describe", "explain", "whatif", "history", "eff", "wait", "top", "report", "mcp"),
    *("config export", "config diff", "config prices", "config owner", "db current", "db status"),
    *("init", "plan", "simulate", "trace", "advise", "doctor", "audit", "help", "options"),
    *("completion", "version", "logs"),
}
"""They only read, or print a file."""
WITHOUT: Final = {
    "subscribe": "it affects no gang, and can be deleted",
    "sendtest": "it affects no gang: a person wants the message",
    "serve": "it is the controller",
    "webhook": "it is the webhook",
    "db serve": "it is a database server",
    "demo": "it starts a separate cluster on this machine",
    "localcluster up": "it starts a separate cluster on this machine",
    "localcluster down": "it stops a separate cluster on this machine",
    "localcluster status": "it reads",
    "localcluster build": "it builds programs for this machine",
    "localcluster exporters": "it changes a separate cluster on this machine",
}
"""Commands that neither read only nor have a dry run, with the reasons."""


def options() -> Iterator[tuple[str, set[str]]]:
    """Each command by its words, with its options."""
    for name, mount in COMMANDS.items():
        command = mount.load(name)
        below = getattr(command, "commands", None)
        for words, each in (
            {f"{name} {k}": v for k, v in below.items()}.items() if below else [(name, command)]
        ):
            yield words, {flag for param in each.params for flag in param.opts}


def test_each_command_that_writes_has_a_dry_run() -> None:
    found = dict(options())
    with_it = {words for words, flags in found.items() if "--dry-run" in flags}
    assert found.keys() - with_it - READS - WITHOUT.keys() == set(), "they need --dry-run"
    assert with_it & (READS | WITHOUT.keys()) == set()
    assert WITHOUT.keys() - found.keys() == set()


def test_the_page_lists_the_commands_that_have_a_dry_run() -> None:
    text = PAGES["cli.md"].read_text()
    table = text.partition("| command | a dry run shows |\n")[2].partition("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines()[1:]]
    listed = {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    with_it = {words for words, flags in options() if "--dry-run" in flags}
    assert listed - {"delete subscription"} == with_it
    after = text.partition(table)[2].partition("they have no dry run")[0]
    without = {name for name in WITHOUT if not name.startswith("localcluster")}
    assert set(re.findall(r"`([^`]+)`", after)) - {"localcluster"} == without


def rows(database: MemoryDatabase) -> dict[str, str]:
    """All that a request can change, as text."""
    return {
        field.name: repr(getattr(database, field.name))
        for field in fields(database)
        if field.name != "changed"
    }


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[MemoryStore, str]]:
    store = MemoryStore()
    reader = FixedClusterReader(world([node("n1", gpu=8)]), store)
    with serving(store, FixedDiagnoser(), cluster_reader=reader) as address:
        yield store, address


BUDGET: Final[dict[str, Any]] = {
    "apiVersion": "queuectl.dev/v1",
    "kind": "Budget",
    "metadata": {"name": "month"},
    "spec": {"clusterQueue": "team-a", "gpuHoursPerMonth": 100},
}
NAMESPACE: Final = ("-n", "team-a")
WRITES: Final[list[tuple[tuple[str, ...], str]]] = [
    (("hold", "team-a/running"), "hold would evict 4 pods"),
    (("release", "team-a/held"), "the hold ends, and it queues again"),
    (("requeue", "team-a/running"), "requeue would evict 4 pods"),
    (("preempt", "team-a/running"), "preempt would evict 4 pods"),
    (("deactivate", "team-a/pending"), "it is deactivated until it is activated"),
    (("activate", "team-a/deactivated"), "it queues again, and its failed starts"),
    (("priority", "team-a/pending", "500"), "the priority 0 becomes 500"),
    (("priority", "team-a/pending", "--reset"), "the priority 0 becomes that of its classes"),
    (("move", "team-a/pending", "spare"), "it moves from LocalQueue default to LocalQueue spare"),
    (("stop", "clusterqueue", "team-a", "--drain"), "clusterqueue/team-a would be stopped"),
    (("resume", "localqueue", "spare", *NAMESPACE), "localqueue/spare in team-a would be resumed"),
    (("apply", "-f", "changed.yaml"), "cohort/new would be created"),
    (("delete", "localqueue", "spare", *NAMESPACE), "localqueue/spare in team-a would be deleted"),
    (("topup", "month", "--gpu-hours", "5", "--reason", "x"), "would be created: 5 GPU-hours"),
]


def test_a_dry_run_writes_nothing(
    served: tuple[MemoryStore, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    store, address = served
    monkeypatch.setenv("QUEUECTL_SERVER", address)
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    monkeypatch.chdir(tmp_path)
    spare = {
        "apiVersion": "queuectl.dev/v1",
        "kind": "LocalQueue",
        "metadata": {"name": "spare", "namespace": "team-a"},
        "spec": {"clusterQueue": "team-a", "stopPolicy": "Hold"},
    }
    new = {"apiVersion": "queuectl.dev/v1", "kind": "Cohort", "metadata": {"name": "new"}}
    Path("all.yaml").write_text(yaml.safe_dump_all([*DOCUMENTS.values(), spare, BUDGET]))
    Path("changed.yaml").write_text(yaml.safe_dump(new))

    def typed(*arguments: str) -> Any:
        return queuectl_with(monkeypatch, capsys, *arguments)

    assert typed("apply", "-f", "all.yaml").code == 0
    for name, life in LIVES.items():
        for change in live_through(job(name), *life):
            store._write(change, 1)
    before = rows(store.database)
    for arguments, shows in WRITES:
        result = typed(*arguments, "--dry-run")
        assert (result.code, shows in result.out) == (0, True), (arguments, result)
        assert rows(store.database) == before, arguments
    refused = [
        ("release", "team-a/pending"),
        ("move", "team-a/pending", "nowhere"),
        ("priority", "team-a/nobody", "5"),
        ("topup", "month", "--gpu-hours", "-5", "--reason", "x"),
        ("resume", "clusterqueue", "nowhere"),
    ]
    for words in refused:
        assert typed(*words, "--dry-run").code in (2, 3, 4), words
    assert rows(store.database) == before


def test_configuration_that_the_cluster_owns_is_refused_as_without_a_dry_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    store = MemoryStore()
    reader = FixedClusterReader(world([node("n1", gpu=8)]), store)
    queue = {**DOCUMENTS[QUEUE_PATH], "metadata": {"name": "new"}}
    file = tmp_path / "new.yaml"
    file.write_text(yaml.safe_dump_all([queue, BUDGET]))
    every = tmp_path / "all.yaml"
    every.write_text(yaml.safe_dump_all([*DOCUMENTS.values(), BUDGET]))
    monkeypatch.setenv("KUBECONFIG", "/nowhere")

    def typed(*arguments: str) -> Any:
        return queuectl_with(monkeypatch, capsys, *arguments)

    with serving(store, FixedDiagnoser(), cluster_reader=reader) as address:
        monkeypatch.setenv("QUEUECTL_SERVER", address)
        typed("apply", "-f", str(every))
    before = rows(store.database)
    owns = "the objects of kueue.x-k8s.io own this configuration; use `kubectl"
    with serving(store, FixedDiagnoser(), cluster_reader=reader, owner=Owner.KUEUE) as address:
        monkeypatch.setenv("QUEUECTL_SERVER", address)
        applied = typed("apply", "-f", str(file), "--dry-run")
        assert (applied.code, f"document 1 (ClusterQueue/new): {owns} apply" in applied.err) == (4, True)  # fmt: skip
        assert applied.out.splitlines()[0] == "budget/month unchanged"
        deleted = typed("delete", "clusterqueue", "team-a", "--dry-run")
        assert (deleted.code, deleted.out) == (4, "")
        assert f"error: clusterqueue/team-a: {owns} delete" in deleted.err
        assert rows(store.database) == before
        compared = typed("config", "diff", "-f", str(every))
        assert (compared.code, compared.out) == (0, ""), compared.err


@pytest.mark.parametrize(
    ("rights", "code", "shows"),
    [
        ([Right("create", "plans")], 5, "ann may not delete cohorts new"),
        ([Right("delete", "cohorts")], 0, "effect on gangs not known: "),
    ],
)
def test_a_dry_run_of_a_deletion_needs_the_right_to_delete(
    rights: list[Right],
    code: int,
    shows: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    store = MemoryStore()
    new = {"apiVersion": "queuectl.dev/v1", "kind": "Cohort", "metadata": {"name": "new"}}
    asyncio.run(store.put_config(new))
    (tmp_path / "token").write_text("some")
    monkeypatch.setenv("QUEUECTL_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    access = people()
    access.know("some", "ann", *rights)
    with serving(store, FixedDiagnoser(), authenticated=AuthenticationLayer(access)) as address:
        result = queuectl_with(
            monkeypatch, capsys, "delete", "cohort", "new", "--dry-run", "--server", address
        )
    assert (result.code, shows in result.out + result.err) == (code, True), result
    assert ("cohort/new would be deleted" in result.out) == (code == 0)


def test_a_what_if_of_a_namespaced_viewer_names_the_missing_right(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    needed = str(Right("create", "plans"))
    (tmp_path / "token").write_text("some")
    monkeypatch.setenv("QUEUECTL_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    access = people()
    access.know("some", "ann", Right("create", "plans", "team-a"))
    with serving(MemoryStore(), authenticated=AuthenticationLayer(access)) as address:
        refused = queuectl_with(monkeypatch, capsys, "whatif", "--drain", "n0", "--server", address)
    assert (refused.code, f"ann may not {needed}" in refused.err) == (5, True), refused
    help_text = queuectl_with(monkeypatch, capsys, "whatif", "--help").out
    assert "right to create plans in all namespaces" in " ".join(help_text.split())
