"""``logs``, ``cancel``, ``-l``, and workloads in another namespace: against a running API and a double of the API server of Kubernetes."""

from __future__ import annotations

import errno
import io
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from queuectl.cli import cancel, log_streams
from queuectl.cli.errors import CommandFailed
from queuectl.cli.log_pods import pod_of_rank, ranked_pods
from queuectl.cli.log_streams import Copied, Prefixed
from queuectl.cli.terminal import PrintableStream
from queuectl.client import Client
from queuectl.domain.arrays import index_uid
from queuectl.domain.jobs import PodPhase, PodRecord
from queuectl.domain.ledger import State
from tests.api.serving import serving
from tests.api.support import LIVES, FixedLookout, job, live_through
from tests.doubles.kubernetes_http import TOKEN, KubernetesHttp, kubernetes_http
from tests.doubles.store import MemoryDatabase, MemoryStore
from tests.support.cli import Cli, Result, queuectl_with

PODS = "/api/v1/namespaces/team-a/pods"
JOBS = "/apis/batch/v1/namespaces/{}/jobs"


class ChosenPods(FixedLookout):
    """The pods that the test sets."""

    chosen: tuple[PodRecord, ...] = ()

    async def pods(self, entry: object) -> tuple[PodRecord, ...] | None:
        return self.chosen


class Answer(io.StringIO):
    """The text that a user types on a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def lookout() -> ChosenPods:
    return ChosenPods(None)


@pytest.fixture(scope="module")
def servers(
    lookout: ChosenPods, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[MemoryStore, str, KubernetesHttp, Path]]:
    store = MemoryStore()
    with (
        serving(store, cluster_reader=lookout) as address,
        kubernetes_http(tmp_path_factory.mktemp("kube")) as (kubernetes, config),
    ):
        yield store, address, kubernetes, config


@pytest.fixture
def kubernetes(servers: tuple[MemoryStore, str, KubernetesHttp, Path]) -> KubernetesHttp:
    """The API server, without objects."""
    servers[2].__init__()  # type: ignore[misc]  # one server for all tests
    return servers[2]


@pytest.fixture
def store(
    servers: tuple[MemoryStore, str, KubernetesHttp, Path], kubernetes: KubernetesHttp
) -> MemoryStore:
    """A workload in each state of team-a, one in team-b, and an index of an array. Those of team-a have objects."""
    store = servers[0]
    store.database = MemoryDatabase()
    parts = [job(name) for name in LIVES]
    parts.append(replace(job("only-here", namespace="team-b"), labels=(("run", "one"),)))
    parts.append(replace(job("sweep_7"), uid=index_uid("uid-sweep", 7)))
    parts.append(replace(job("alone", kind="Pod"), labels=(("run", "one"),)))
    parts.append(replace(job("group", kind="PodGroup"), uid="uid-group.g"))
    for record in parts:
        for change in live_through(record, *LIVES.get(record.name, ())):
            store._write(change, 1)
        kubernetes.uids[f"{JOBS.format(record.namespace)}/{record.name}"] = record.uid
    kubernetes.uids[f"{PODS}/alone"] = "uid-pod-alone"
    return store


@pytest.fixture
def queuectl(
    servers: tuple[MemoryStore, str, KubernetesHttp, Path],
    store: MemoryStore,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Cli:
    """Runs the program in this process. ``typed``: the answer on a terminal; None = no terminal."""
    monkeypatch.setenv("QUEUECTL_SERVER", servers[1])
    monkeypatch.setenv("KUBECONFIG", str(servers[3]))
    monkeypatch.setattr(cancel, "_NOTICE_SECONDS", 0.0)  # the store here notices no deletion

    def call(*arguments: str, typed: str | None = None) -> Result:
        monkeypatch.setattr("sys.stdin", io.StringIO() if typed is None else Answer(typed))
        return queuectl_with(monkeypatch, capfd, *arguments)

    return call


def pod(rank: int | None, *, podset: str = "worker", **fields: object) -> PodRecord:
    suffix = f"{podset}-{rank}" if rank is not None else podset
    whole = {
        "namespace": "team-a", "name": f"running-{suffix}", "uid": f"u-{suffix}", "version": 1,
        "podset": podset, "rank": rank, "attempt": 1, "phase": PodPhase.RUNNING, "node": "n1",
    } | fields  # fmt: skip
    return PodRecord(**whole)  # type: ignore[arg-type]


@pytest.fixture
def gang(lookout: ChosenPods, kubernetes: KubernetesHttp) -> KubernetesHttp:
    """Four pods of which the last has not started; the log of each has two lines."""
    waits = pod(3, phase=PodPhase.PENDING, status_reason="ImagePullBackOff")
    old = pod(0, name="running-old", attempt=0, phase=PodPhase.FAILED)
    lookout.chosen = (waits, *(pod(rank) for rank in range(3)), old)
    for rank in range(3):
        text = f"rank {rank}\nstep 1".encode()
        kubernetes.logs[f"{PODS}/running-worker-{rank}"] = {"main": text}
    return kubernetes


class TestLogs:
    def test_the_log_of_a_rank_is_copied(self, queuectl: Cli, gang: KubernetesHttp) -> None:
        first = queuectl("logs", "running")
        assert (first.code, first.out) == (0, "rank 0\nstep 1")
        assert (
            first.err == "4 pods; this is rank 0: give --rank RANK or --all-ranks for the others\n"
        )
        assert gang.headers["Authorization"] == f"Bearer {TOKEN}"
        assert gang.headers["Impersonate-User"] == "bob"
        second = queuectl("logs", "team-a/running", "--rank", "worker/2", "--tail", "1")
        assert (second.code, second.out, second.err) == (0, "step 1", "")

    def test_the_options_are_those_of_the_api_server(
        self, queuectl: Cli, gang: KubernetesHttp
    ) -> None:
        options = ["--rank", "1", "-c", "main", "--timestamps"]
        assert queuectl("logs", "running", "-f", *options, "--since", "2026-01-31T12:00:00Z").out
        _, target, _ = gang.requests[-1]
        wanted = "container=main&sinceTime=2026-01-31T12%3A00%3A00Z&follow=true&timestamps=true"
        assert target == f"{PODS}/running-worker-1/log?{wanted}"

    @pytest.mark.parametrize(
        ("since", "seconds"), [("5m", 300), ("2d", 172_800), ("1.2s", 2), ("0", 1)]
    )
    def test_a_duration_is_measured_by_the_clock_of_the_log(
        self, queuectl: Cli, gang: KubernetesHttp, since: str, seconds: int
    ) -> None:
        queuectl("logs", "running", "--rank", "1", "--since", since)
        assert gang.requests[-1][1].endswith(f"/log?sinceSeconds={seconds}")

    @pytest.mark.parametrize("follow", [(), ("-f",)], ids=["printed", "followed"])
    def test_each_line_of_all_ranks_begins_with_the_rank(
        self, queuectl: Cli, gang: KubernetesHttp, follow: tuple[str, ...]
    ) -> None:
        result = queuectl("logs", "running", "--all-ranks", *follow)
        lines = [f"[{rank}] {text}" for rank in range(3) for text in (f"rank {rank}", "step 1")]
        assert sorted(result.out.splitlines()) == sorted(lines)
        assert follow or result.out.splitlines() == lines
        assert result.code == 4
        assert result.err.splitlines() == [
            "error: 3: pod running-worker-3 has no log yet: ImagePullBackOff"
        ]

    def test_a_log_that_cannot_be_read_is_one_line_with_the_cause(
        self, queuectl: Cli, gang: KubernetesHttp, lookout: ChosenPods
    ) -> None:
        def said(*arguments: str) -> tuple[int, str]:
            result = queuectl("logs", *arguments)
            assert result.out == ""
            return result.code, result.err.removesuffix("\n")

        assert said("running", "--rank", "4") == (
            2,
            "error: team-a/running has no rank '4'; its ranks are 0 to 3",
        )
        assert said("running", "--rank", "x")[0] == 2
        assert said("running", "--rank", "3") == (
            4,
            "error: pod running-worker-3 has no log yet: ImagePullBackOff",
        )
        assert said("running", "--rank", "0", "--all-ranks")[0] == 2
        assert said("running", "-p", "-f")[0] == 2
        gang.forbidden.add(f"{PODS}/running-worker-1/log")
        assert said("running", "--rank", "1") == (
            5,
            f'error: User "alice" cannot get {PODS}/running-worker-1/log',
        )
        del gang.logs[f"{PODS}/running-worker-2"]
        assert said("running", "--rank", "2") == (
            3,
            (
                "error: pod running-worker-2 is deleted, and its log with it; or the kubeconfig's context 'here' "
                "is of another cluster than the server"
            ),
        )
        gang.logs[f"{PODS}/running-worker-0"]["sidecar"] = b"proxy\n"
        assert said("running", "--rank", "0") == (
            2,
            "error: pod running-worker-0 has several containers: choose one with -c: main, sidecar",
        )
        lookout.chosen = ()
        code, text = said("pending")
        assert code == 4
        assert text.startswith(
            "error: team-a/pending has not started, so it has no logs: Pending: "
        )
        assert said("finished") == (
            3,
            "error: team-a/finished has finished, and its pods are deleted with their logs",
        )

    @pytest.mark.parametrize("follow", [(), ("-f",)], ids=["printed", "followed"])
    def test_a_closed_pipe_ends_quietly(
        self,
        queuectl: Cli,
        gang: KubernetesHttp,
        monkeypatch: pytest.MonkeyPatch,
        follow: tuple[str, ...],
    ) -> None:
        class Closed(io.BytesIO):
            def write(self, _: object) -> int:
                raise BrokenPipeError(errno.EPIPE, "Broken pipe")

        monkeypatch.setattr(log_streams, "raw_output", Closed)
        monkeypatch.setattr("sys.stdout", sys.stdout)  # which typer replaces after this error
        monkeypatch.setattr("sys.stderr", sys.stderr)
        result = queuectl("logs", "running", "--all-ranks", *follow)
        assert (result.code, result.out) == (1, "")
        waits = "error: 3: pod running-worker-3 has no log yet: ImagePullBackOff"
        assert set(result.err.splitlines()) <= {waits}

    def test_the_default_container_of_a_pod_is_used(
        self, queuectl: Cli, gang: KubernetesHttp
    ) -> None:
        path = f"{PODS}/running-worker-1"
        gang.logs[path]["sidecar"] = b"proxy\n"
        gang.annotations[path] = {"kubectl.kubernetes.io/default-container": "sidecar"}
        assert queuectl("logs", "running", "--rank", "1").out == "proxy\n"

    def test_ranks_of_podsets_and_pods_without_ranks(self) -> None:
        def view(record: PodRecord) -> dict[str, object]:
            return {
                "name": record.name, "podSet": record.podset, "rank": record.rank,
                "attempt": record.attempt, "phase": str(record.phase), "terminating": False,
                "reason": record.status_reason, "node": record.node,
            }  # fmt: skip

        workload = {"namespace": "team-a", "name": "running", "state": "Running"}

        def refused(records: list[PodRecord], rank: str) -> str:
            pods = ranked_pods(workload, map(view, records))  # type: ignore[arg-type]
            with pytest.raises(CommandFailed) as error:
                pod_of_rank(workload, pods, rank)
            return str(error.value)

        gang = [pod(0, podset="launcher"), *(pod(rank) for rank in (0, 1, 2, 5))]
        pods = ranked_pods(workload, map(view, gang))  # type: ignore[arg-type]
        assert [each.label for each in pods] == [
            "launcher/0", "worker/0", "worker/1", "worker/2", "worker/5",
        ]  # fmt: skip
        assert pod_of_rank(workload, pods, "5").name == "running-worker-5"
        assert "give --rank launcher/0 or --rank worker/0" in refused(gang, "0")
        assert refused(gang, "3").endswith("its ranks are launcher/0, worker/0 to 2, worker/5")
        assert "have no ranks" in refused([pod(None)], "0")
        replaced = [
            pod(0, name="failed", phase=PodPhase.FAILED),
            pod(0, name="again"),
            pod(0, name="next", phase=PodPhase.PENDING),
        ]
        assert [each.name for each in ranked_pods(workload, map(view, replaced))] == ["again"]  # type: ignore[arg-type]

    def test_a_log_controls_no_terminal_and_reaches_a_file_unchanged(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sent = "\x1b[31mred\x1b[0m \x1b]0;title\x07 ü\r 50%\r100%\r\n".encode()

        class Terminal(io.StringIO):
            def isatty(self) -> bool:
                return True

        terminal = Terminal()
        monkeypatch.setattr("sys.stdout", PrintableStream(terminal))
        copied = Copied()
        for byte in sent:
            copied.add(bytes([byte]))
        copied.end()
        assert terminal.getvalue() == "red \\u001b]0;title\\u0007 ü\n 50%\n100%\n"
        file = io.TextIOWrapper(io.BytesIO())
        monkeypatch.setattr("sys.stdout", PrintableStream(file))
        Copied().add(sent)
        prefixed = Prefixed("[1] ")
        for part in (b"a", b"b\nc", b"x" * 200_000, b""):
            prefixed.add(part)
        prefixed.end()
        assert file.buffer.getvalue() == sent + b"[1] ab\n[1] c" + b"x" * 200_000 + b"\n"


class TestCancel:
    def test_the_job_is_deleted_with_its_uid(
        self, queuectl: Cli, kubernetes: KubernetesHttp
    ) -> None:
        result = queuectl("cancel", "running")
        assert (result.code, result.err) == (0, "")
        assert [line.rstrip() for line in result.out.splitlines()] == [
            "KIND   NAMESPACE   NAME      STATE     PODS   GPUS",
            "Job    team-a      running   Running   4      32",
            "1 job with 4 pods and 32 GPUs",
            "job/team-a/running deleted",
        ]
        method, path, body = kubernetes.requests[-1]
        assert (method, path) == ("DELETE", f"{JOBS.format('team-a')}/running")
        assert body["preconditions"] == {"uid": "uid-job-running"}
        assert body["propagationPolicy"] == "Background"

    def test_filters_delete_what_matches_in_the_namespace(
        self, queuectl: Cli, kubernetes: KubernetesHttp
    ) -> None:
        before = set(kubernetes.uids)
        tried = queuectl("cancel", "--state", "pending,backoff", "--dry-run")
        assert "job/team-a/pending would be deleted" in tried.out
        assert kubernetes.requests[-1][2]["dryRun"] == ["All"]
        assert set(kubernetes.uids) == before
        done = queuectl("cancel", "-l", "run=one", "--yes", "--cascade", "foreground")
        assert done.out.splitlines()[-1] == "pod/team-a/alone deleted"
        assert kubernetes.requests[-1][2]["propagationPolicy"] == "Foreground"
        everywhere = queuectl("cancel", "-l", "run=one", "-A", "-y")
        assert "job/team-b/only-here deleted" in everywhere.out
        assert before - set(kubernetes.uids) == {
            f"{PODS}/alone",
            f"{JOBS.format('team-b')}/only-here",
        }

    def test_a_terminal_asks_and_a_pipe_needs_yes(
        self, queuectl: Cli, kubernetes: KubernetesHttp
    ) -> None:
        for arguments in (["running", "pending"], ["--state", "Running"]):
            refused = queuectl("cancel", *arguments)
            assert (refused.code, "give --yes to delete" in refused.err) == (2, True)
        for typed in ("", "n\n", "no\n", "yesterday\n"):
            denied = queuectl("cancel", "running", typed=typed)
            assert (denied.code, denied.err) == (1, "error: nothing is deleted\n")
        assert all(method != "DELETE" for method, _, _ in kubernetes.requests)
        agreed = queuectl("cancel", "running", "pending", typed="y\n")
        assert "Delete 2 jobs with 8 pods and 64 GPUs? [y/N] " in agreed.out
        assert agreed.code == 0

    def test_an_deleted_or_replaced_object_is_not_deleted(
        self,
        queuectl: Cli,
        store: MemoryStore,
        kubernetes: KubernetesHttp,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        jobs, entries = JOBS.format("team-a"), store.database.entries
        del kubernetes.uids[f"{jobs}/running"]
        kubernetes.uids[f"{jobs}/pending"] = "another"

        def noticed(_: float) -> None:
            for name in ("running", "pending"):
                uid = f"uid-job-{name}"
                entries[uid] = replace(entries[uid], state=State.FINISHED)

        with monkeypatch.context() as patch:
            patch.setattr(cancel, "_NOTICE_SECONDS", 60.0)
            patch.setattr(time, "sleep", noticed)
            result = queuectl("cancel", "running", "pending", "-y")
        assert result.code == 0
        assert result.out.splitlines()[-2:] == [
            "job/team-a/running is deleted already",
            "job/team-a/pending is deleted already",
        ]
        assert kubernetes.uids[f"{jobs}/pending"] == "another"
        kubernetes.uids.clear()
        mistaken = queuectl("cancel", "held", "-y")
        assert mistaken.code == 4
        assert mistaken.err.startswith(
            "error: job/team-a/held: the cluster of the kubeconfig's context 'here' does not have it"
        )

    def test_a_refused_deletion_is_a_line_and_the_others_go_on(
        self, queuectl: Cli, kubernetes: KubernetesHttp
    ) -> None:
        kubernetes.forbidden.add(f"{JOBS.format('team-a')}/running")
        result = queuectl("cancel", "running", "pending", "-y")
        assert result.code == 5
        assert result.err.startswith('error: job/team-a/running: User "alice" cannot delete')
        assert "job/team-a/pending deleted" in result.out

    def test_only_the_object_of_a_workload_is_deleted(
        self, queuectl: Cli, kubernetes: KubernetesHttp
    ) -> None:
        said = {
            "sweep_7": "it is one index of a Job, whose deletion deletes all indexes: use `kubectl delete -n team-a job sweep`",
            "group": "it consists of pods: use `kubectl delete -n team-a pods -l queuectl.dev/pod-group-name=group`",
        }
        for name, text in said.items():
            result = queuectl("cancel", name, "-y")
            assert (result.code, text in result.err) == (2, True), result.err
        finished = queuectl("cancel", "finished", "-y")
        assert (finished.code, finished.out) == (0, "job/team-a/finished has finished\n")
        assert kubernetes.requests == []

    def test_a_job_that_no_longer_matches_is_not_deleted(
        self,
        queuectl: Cli,
        store: MemoryStore,
        kubernetes: KubernetesHttp,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        def starts(_: object) -> str:
            """While the user thinks, the job starts."""
            entries = store.database.entries
            state = entries["uid-job-running"].state
            entries["uid-job-pending"] = replace(entries["uid-job-pending"], state=state)
            return "y\n"

        monkeypatch.setattr(Answer, "readline", starts)
        result = queuectl("cancel", "--state", "pending", typed="")
        assert "job/team-a/pending no longer matches: not deleted" in result.out
        assert f"{JOBS.format('team-a')}/pending" in kubernetes.uids

    def test_wrong_usage(self, queuectl: Cli) -> None:
        for arguments in (
            [],
            ["running", "--state", "pending"],
            ["running", "-A"],
            ["--state", "pending", "-A", "-n", "team-a"],
            ["--state", "finished"],
            ["--mine", "--user", "alice"],
            ["--mine"],  # this server authenticates no caller
            ["-l", "queuectl.dev/queue-name=default"],
            ["-l", "a in b"],
            ["-l", " "],
        ):
            result = queuectl("cancel", *arguments, "-y")
            assert (result.code, result.out) == (2, ""), (arguments, result)
        nothing = queuectl("cancel", "-l", "run=none", "-y")
        assert (nothing.code, nothing.err) == (0, "no job matches in namespace team-a\n")


def test_a_page_of_a_proxy_is_neither_a_log_nor_a_deletion(
    queuectl: Cli, gang: KubernetesHttp
) -> None:
    for status in (200, 302, 502):
        gang.pages = {
            f"{PODS}/running-worker-0/log": status,
            f"{JOBS.format('team-a')}/running": status,
        }
        text = f"HTTP {status}: the answer is not from a Kubernetes API server\n"
        read = queuectl("logs", "running", "--rank", "0")
        assert (read.code, read.out, read.err) == (1, "", f"error: {text}")
        deleted = queuectl("cancel", "running")
        assert (deleted.code, deleted.err) == (1, f"error: job/team-a/running: {text}")
        assert "deleted" not in deleted.out


def test_a_server_cannot_substitute_another_job(
    queuectl: Cli, kubernetes: KubernetesHttp, monkeypatch: pytest.MonkeyPatch
) -> None:
    get, objects = Client.get, Client.objects

    def elsewhere(job: dict[str, object]) -> dict[str, object]:
        return {**job, "namespace": "prod"} if "uid" in job else job

    monkeypatch.setattr(Client, "get", lambda *args, **query: elsewhere(get(*args, **query)))
    monkeypatch.setattr(Client, "objects", lambda *args: map(elsewhere, objects(*args)))
    named = queuectl("cancel", "running", "-y")
    assert named.err == "error: the server answers with prod/running instead of team-a/running\n"
    assert (
        queuectl("cancel", "--state", "running", "-y").err == "no job matches in namespace team-a\n"
    )
    assert kubernetes.requests == []


def test_a_list_is_selected_by_labels(queuectl: Cli) -> None:
    listed = queuectl("get", "workloads", "-l", "run=one", "-o", "name")
    assert sorted(listed.out.splitlines()) == ["job/team-b/only-here", "pod/team-a/alone"]
    assert queuectl("get", "nodes", "-l", "run=one").err.startswith(
        "error: --selector is for lists of workloads"
    )


def test_a_workload_in_another_namespace_is_named(queuectl: Cli) -> None:
    for arguments, command in {
        ("explain", "only-here"): "explain team-b/only-here",
        ("describe", "workload", "only-here"): "describe workload team-b/only-here",
        ("get", "wl", "only-here"): "get wl team-b/only-here",
        ("wait", "only-here"): "wait team-b/only-here",
        ("hold", "only-here", "-n", "default"): "hold team-b/only-here",
        ("priority", "team-a/only-here", "5"): "priority team-b/only-here 5",
        ("logs", "only-here"): "logs team-b/only-here",
        ("cancel", "running", "only-here"): "cancel team-b/only-here",
    }.items():
        result = queuectl(*arguments)
        assert result.code == 3
        assert result.err.endswith(
            f"/only-here does not exist; team-b has one: queuectl {command}\n"
        ), result.err
    assert queuectl("explain", "nowhere").err == "error: workload team-a/nowhere does not exist\n"
