"""``queuectl whatif`` and ``queuectl delete`` against a running API."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from queuectl.demo import scenario as m
from tests.api.serving import serving
from tests.api.support import CLUSTER_QUEUE, DOCUMENTS, LOCAL_QUEUE, FixedClusterReader
from tests.api.test_plans import DOCUMENTS as POOL
from tests.api.test_plans import job, of, runs, seen
from tests.doubles.store import MemoryDatabase, MemoryStore
from tests.support.cli import Cli, Result, queuectl_with

FULL = seen(runs("a", "n0", "n1"), runs("b", "n2", "n3"))
ROOM = seen(runs("a", "n0", "n1"))
NO_OTHER_CHANGE = "no change for other gangs"


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[FixedClusterReader, MemoryStore, str]]:
    store = MemoryStore()
    cluster_reader = FixedClusterReader(None, store)
    with serving(store, cluster_reader=cluster_reader) as address:
        yield cluster_reader, store, address


@pytest.fixture
def store(running: tuple[FixedClusterReader, MemoryStore, str]) -> MemoryStore:
    running[1].database = MemoryDatabase()
    return running[1]


@pytest.fixture
def cluster_reader(
    running: tuple[FixedClusterReader, MemoryStore, str], store: MemoryStore
) -> FixedClusterReader:
    """With a queue of 32 GPUs, in two namespaces."""
    for document in POOL:
        asyncio.run(store.put_config(document))
    running[0].snapshot = ROOM
    return running[0]


@pytest.fixture
def queuectl(
    running: tuple[FixedClusterReader, MemoryStore, str],
    store: MemoryStore,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Cli:
    """Runs the program in this process; documents are given on stdin."""
    monkeypatch.setenv("QUEUECTL_SERVER", running[2])
    monkeypatch.setenv("KUBECONFIG", "/nowhere")

    def call(*arguments: str, files: tuple[Any, ...] = ()) -> Result:
        given = yaml.safe_dump_all(files).encode()
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given)))
        return queuectl_with(monkeypatch, capsys, *arguments)

    return call


def pool(gpus: int) -> dict[str, Any]:
    return dict(m.cluster_queue("pool", "gpu", {"nvidia.com/gpu": gpus, "cpu": "1k", "pods": 1000}))


def row(result: Result, workload: str) -> list[str]:
    """The cells of a gang's line of the table of others."""
    (line,) = (each for each in result.out.splitlines() if each.startswith(f"{workload} "))
    return [cell.strip() for cell in line.split("   ") if cell.strip()]


@pytest.mark.usefixtures("cluster_reader")
class TestWhatIf:
    def test_a_job_that_would_start_is_shown_with_its_placement_and_the_code_is_0(
        self, queuectl: Cli
    ) -> None:
        result = queuectl("whatif", "-f", "-", files=(job("new", 2),))
        assert result.code == 0, result.err
        assert result.out.splitlines()[:6] == [
            "default/new (16 GPUs) would start at once.",
            "",
            "It will run on:",
            "  main: 2 pods of flavor gpu on n2, n3",
            "",
            NO_OTHER_CHANGE,
        ]
        table = [line.split() for line in result.out.splitlines()[-3:]]
        assert table[0] == [
            "STARTED",
            "GPUS",
            "STARTED",
            "PENDING",
            "EVICTED",
            "LOST",
            "GPU-SECONDS",
        ]
        assert table[1:] == [
            ["before", "0", "0", "0", "0", "0"],
            ["after", "1", "16", "0", "0", "0"],
        ]

    def test_a_job_that_would_wait_is_shown_with_reasons_and_fixes_and_the_code_is_4(
        self, queuectl: Cli
    ) -> None:
        result = queuectl("whatif", "-f", "-", files=(job("small", 1), job("new", 4)))
        assert (result.code, result.err) == (4, "")
        assert "default/small (8 GPUs) would start at once." in result.out
        assert "default/new (32 GPUs) would wait: " in result.out
        assert "Blocking constraint" in result.out
        assert "Suggested fixes, each enough by itself:" in result.out

    def test_victims_are_shown_with_their_preemptor_and_the_lost_work(
        self, queuectl: Cli, cluster_reader: FixedClusterReader
    ) -> None:
        cluster_reader.snapshot = FULL
        result = queuectl("whatif", "-f", "-", files=(job("urgent", 2, "high"),))
        assert result.code == 0, result.err
        head, *_ = result.out.splitlines()
        assert head == ("default/urgent (16 GPUs) would start after its victims are evicted.")
        leaving = "a" if "\ndefault/a " in result.out else "b"
        lost = result.out.split()[-1]
        assert int(lost) > 0
        assert row(result, f"default/{leaving}") == [
            f"default/{leaving}", "16", "runs", "leaves",
            f"preempted by default/urgent; loses {lost} GPU-seconds of work",
        ]  # fmt: skip

    def test_gangs_of_drained_nodes_are_shown_with_their_new_nodes(self, queuectl: Cli) -> None:
        result = queuectl("whatif", "--drain", "n1,n2")
        assert result.code == 0, result.err
        assert row(result, "default/a") == ["default/a", "16", "runs", "repaired", "on n0, n3"]

    def test_added_nodes_and_quota_are_simulated_together(
        self, queuectl: Cli, cluster_reader: FixedClusterReader
    ) -> None:
        waits = (of("c", 2),)
        cluster_reader.snapshot = seen(runs("a", "n0", "n1"), runs("b", "n2", "n3"), waits=waits)
        result = queuectl("whatif", "--add", "n0=2", "-f", "-", files=(pool(64),))
        assert result.code == 0, result.err
        assert row(result, "default/c") == [
            "default/c", "16", "waits", "starts", "on n0-more-1, n0-more-2",
        ]  # fmt: skip
        alone = queuectl("whatif", "--add", "n0=2")
        assert NO_OTHER_CHANGE in alone.out

    @pytest.mark.parametrize("given", ["localqueue/default/research", "lq/research"])
    def test_without_its_queue_a_gang_would_wait(
        self, queuectl: Cli, cluster_reader: FixedClusterReader, given: str
    ) -> None:
        cluster_reader.snapshot = seen(waits=(of("b", 2),))
        result = queuectl("whatif", "--delete", given)
        assert result.code == 0, result.err  # nothing was submitted
        assert row(result, "default/b")[2:4] == ["starts", "waits"]
        assert "does not exist" in row(result, "default/b")[4]

    def test_exceeded_quotas_are_shown_with_the_gangs_that_exceed_them(self, queuectl: Cli) -> None:
        result = queuectl("whatif", "-f", "-", files=(pool(8),))
        assert (
            "over quota: ClusterQueue pool: 16 nvidia.com/gpu of flavor gpu in use, 8 allowed:"
            " default/a"
        ) in result.out.splitlines()

    @pytest.mark.parametrize("form", ["json", "yaml"])
    def test_json_and_yaml_are_the_answer_of_the_api_with_the_same_code(
        self, queuectl: Cli, form: str
    ) -> None:
        result = queuectl("whatif", "-f", "-", "-o", form, files=(job("new", 4),))
        body = json.loads(result.out) if form == "json" else yaml.safe_load(result.out)
        assert (result.code, body["waits"][0]["workload"]) == (4, "default/new")

    def test_a_job_without_a_namespace_gets_that_of_the_command_line(self, queuectl: Cli) -> None:
        written = job("new", 1)
        del written["metadata"]["namespace"]
        result = queuectl("whatif", "-n", "other", "-f", "-", files=(written,))
        assert result.out.startswith("other/new (8 GPUs) would start"), result.err

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            ([], "use -f, --drain, --add or --delete"),
            (["--add", "n0"], "--add 'n0': not of the form NODE=COUNT"),
            (["--add", "n0=many"], "for example n7=4"),
            (["--drain", "n9"], "drain: node n9 does not exist"),
            (["--delete", "wl/a"], "queuectl preempt --dry-run"),
            (["--delete", "cq"], "--delete 'cq': not of the form cq/NAME"),
            (["--delete", "cq/a/b"], "--delete 'cq/a/b': not of the form cq/NAME"),
            (["--delete", "lq/"], "--delete 'lq/': not of the form lq/NAMESPACE/NAME"),
            (["--delete", "pods/a"], "unknown kind 'pods'"),
            (["--delete", "cohort/none"], "delete: Cohort none does not exist"),
            (["-f", "nowhere.yaml"], "nowhere.yaml: No such file"),
        ],
    )
    def test_an_invalid_change_is_named(
        self, queuectl: Cli, arguments: list[str], says: str
    ) -> None:
        result = queuectl("whatif", *arguments)
        assert (result.code, result.out) == (2, "")
        assert says in result.err

    def test_a_document_that_is_not_a_job_is_named(self, queuectl: Cli) -> None:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}}
        result = queuectl("whatif", "-f", "-", files=(pod,))
        assert result.code == 2
        assert "Pod/x: metadata.labels.queuectl.dev/queue-name: it has no queue label" in result.err

    def test_a_document_without_effect_is_shown_with_its_reason(self, queuectl: Cli) -> None:
        service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}}
        result = queuectl("whatif", "-f", "-", files=(service, job("new", 1)))
        assert result.code == 0
        reason = "objects of kind Service are not read"
        assert f"ignored: v1 submit: Service/x: {reason}" in result.err

    def test_a_server_without_a_snapshot_reports_that(
        self, queuectl: Cli, cluster_reader: FixedClusterReader
    ) -> None:
        cluster_reader.snapshot = None
        assert queuectl("whatif", "--drain", "n0").code == 1


class TestDelete:
    def test_by_kind_and_name(self, queuectl: Cli) -> None:
        queuectl("apply", "-f", "-", files=tuple(DOCUMENTS.values()))
        result = queuectl("delete", "cq", "team-a")
        assert (result.code, result.out) == (0, "clusterqueue/team-a deleted\n"), result.err
        assert queuectl("get", "cq", "team-a").code == 3

    def test_a_localqueue_has_a_namespace(self, queuectl: Cli) -> None:
        queuectl("apply", "-f", "-", files=(LOCAL_QUEUE,))
        other = queuectl("delete", "lq", "default")
        assert (other.code, other.out) == (3, "")
        assert "error: localqueue/default in default: " in other.err
        result = queuectl("delete", "lq", "default", "-n", "team-a")
        assert result.out == "localqueue/default in team-a deleted\n", result.err

    def test_all_of_a_file_in_the_opposite_order_of_apply(
        self, queuectl: Cli, store: MemoryStore
    ) -> None:
        files = tuple(DOCUMENTS.values())
        applied = queuectl("apply", "-f", "-", files=files).out.splitlines()
        deleted = queuectl("delete", "-f", "-", files=files).out.splitlines()
        assert [line.rpartition(" ")[0] for line in deleted] == [
            line.rpartition(" ")[0] for line in reversed(applied)
        ]
        assert not store.database.documents

    def test_a_missing_object_is_named_and_the_others_are_deleted(self, queuectl: Cli) -> None:
        queuectl("apply", "-f", "-", files=(CLUSTER_QUEUE,))
        result = queuectl("delete", "cq", "gone", "team-a")
        assert (result.code, result.out) == (3, "clusterqueue/team-a deleted\n")
        assert result.err == "error: clusterqueue/gone: ClusterQueue gone does not exist\n"
        again = queuectl("delete", "cq", "gone", "--ignore-not-found")
        assert (again.code, again.out) == (0, "clusterqueue/gone not found\n")

    @pytest.mark.parametrize("dry_run", [["--dry-run"], []])
    @pytest.mark.usefixtures("cluster_reader")
    def test_an_object_with_another_version_is_not_deleted(
        self, queuectl: Cli, dry_run: list[str]
    ) -> None:
        def version() -> str:
            body = json.loads(queuectl("get", "cq", "pool", "-o", "json").out)
            return str(body["metadata"]["resourceVersion"])

        read = version()
        queuectl("apply", "-f", "-", files=(pool(8),))
        late = queuectl("delete", "cq", "pool", "--resource-version", read, *dry_run)
        assert (late.code, late.out) == (4, "")
        assert "error: clusterqueue/pool: " in late.err
        now = queuectl("delete", "cq", "pool", "--resource-version", version(), *dry_run)
        assert now.code == 0, now.err

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            ([], "give a kind and names, or files with -f"),
            (["cq"], "give a kind and names, or files with -f"),
            (["cq", "a", "-f", "-"], "give a kind and names, or files with -f"),
            (["wl", "train"], "stop it with `queuectl deactivate`"),
            (["pods", "x"], "unknown kind 'pods'"),
            (
                ["cq", "a", "b", "--resource-version", "1"],
                "--resource-version: needs exactly one object",
            ),
            (["-f", "nowhere.yaml"], "nowhere.yaml: No such file"),
        ],
    )
    def test_contradicting_arguments_are_refused(
        self, queuectl: Cli, arguments: list[str], says: str
    ) -> None:
        result = queuectl("delete", *arguments)
        assert (result.code, result.out) == (2, "")
        assert says in result.err

    def test_nothing_is_deleted_when_a_document_cannot_be_addressed(
        self, queuectl: Cli, store: MemoryStore
    ) -> None:
        queuectl("apply", "-f", "-", files=(CLUSTER_QUEUE,))
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}}
        assert queuectl("delete", "-f", "-", files=(CLUSTER_QUEUE, pod)).code == 2
        assert len(store.database.documents) == 1

    def test_a_dry_run_shows_the_effect_and_deletes_nothing(
        self, queuectl: Cli, cluster_reader: FixedClusterReader, store: MemoryStore
    ) -> None:
        cluster_reader.snapshot = seen(waits=(of("b", 2),))
        before = dict(store.database.documents)
        result = queuectl("delete", "--dry-run", "cq", "pool", "gone")
        assert result.code == 3
        assert result.err.splitlines()[0].startswith("error: clusterqueue/gone: ")
        assert result.out.splitlines()[0] == "clusterqueue/pool would be deleted"
        assert row(result, "default/b")[2:4] == ["starts", "waits"]
        assert (
            "warning: LocalQueue default/research: ClusterQueue pool does not exist" in result.err
        )
        assert store.database.documents == before

    def test_a_dry_run_without_a_snapshot_fails(
        self, queuectl: Cli, cluster_reader: FixedClusterReader
    ) -> None:
        cluster_reader.snapshot = None
        assert queuectl("delete", "--dry-run", "cq", "pool").code == 1
