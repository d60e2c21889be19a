"""``apply``, ``get``, ``describe``, ``explain`` and commands for workloads against a running API: output and exit codes."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml

from queuectl.cli.listings import URGENCY
from queuectl.domain.commands import Action
from queuectl.domain.events import Admit
from queuectl.domain.plan import Cost
from queuectl.domain.quantity import GPU, Resources
from queuectl.domain.queries import URGENCY as OF_STATES
from queuectl.domain.queries import DocumentKey
from queuectl.domain.utilization import GangUse, UseState
from queuectl.domain.what_if import DrainCost, Preview
from queuectl.domain.workload import Placement, PodSet, PodSetPlacement, PodShape
from queuectl.localcluster.layout import free_ports
from tests.api.serving import serving
from tests.api.support import (
    CLUSTER_QUEUE,
    DOCUMENTS,
    LIVES,
    LOCAL_QUEUE,
    OVERRIDE,
    PLACED,
    FixedDiagnoser,
    job,
    live_through,
)
from tests.doubles.store import MemoryDatabase, MemoryStore
from tests.support.cli import Cli, Result, queuectl_with

NOW = time.time()
IDLE = GangUse("", 1, UseState.IDLE, NOW - 2400, NOW, 0.004, 1.0, "its busiest GPU stayed below 1%")
BLIND = GangUse("", 1, UseState.UNKNOWN, NOW - 300, NOW, None, 0.5, "w-3: no GPU of it is seen")


@pytest.fixture(scope="module")
def diagnoser() -> FixedDiagnoser:
    return FixedDiagnoser()


@pytest.fixture(scope="module")
def running(diagnoser: FixedDiagnoser) -> Iterator[tuple[MemoryStore, str]]:
    """One server for all tests; each puts a separate database behind it."""
    store = MemoryStore()
    diagnoser.uses = {"uid-job-running": IDLE, "uid-job-unready": BLIND}
    with serving(store, diagnoser) as address:
        yield store, address


@pytest.fixture
def database(running: tuple[MemoryStore, str]) -> MemoryDatabase:
    running[0].database = MemoryDatabase()
    return running[0].database


@pytest.fixture
def server(running: tuple[MemoryStore, str], database: MemoryDatabase) -> str:
    return running[1]


@pytest.fixture
def queuectl(
    server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Cli:
    """Runs the program in this process, as a shell would."""
    monkeypatch.setenv("QUEUECTL_SERVER", server)
    monkeypatch.setenv("KUBECONFIG", "/nowhere")

    def call(*arguments: str, stdin: str = "") -> Result:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        return queuectl_with(monkeypatch, capsys, *arguments)

    return call


@pytest.fixture
def ledger(database: MemoryDatabase) -> MemoryDatabase:
    """A workload in every state, with its history."""
    for name, life in LIVES.items():
        for change in live_through(job(name), *life):
            MemoryStore(database)._write(change, 1)
    return database


def stream(*documents: dict[str, Any]) -> str:
    return yaml.safe_dump_all(documents)


EVERY = stream(*DOCUMENTS.values())


class TestApply:
    def test_it_prints_the_result_for_each_object(self, queuectl: Cli) -> None:
        first = queuectl("apply", "-f", "-", stdin=EVERY)
        assert first.code == 0, first.err
        assert first.out.splitlines() == [
            "configuration/default created",
            "topology/racks created",
            "resourceflavor/h100 created",
            "workloadpriorityclass/high created",
            "cohort/all created",
            "clusterqueue/team-a created",
            "quotaoverride/deadline created",
            "localqueue/default in team-a created",
        ]
        changed = replace_in(CLUSTER_QUEUE, stopPolicy="Hold")
        second = queuectl("apply", "-f", "-", stdin=stream(changed, LOCAL_QUEUE))
        assert second.out.splitlines() == [
            "clusterqueue/team-a configured",
            "    spec.stopPolicy: (none) -> Hold",
            "localqueue/default in team-a unchanged",
        ]

    @pytest.mark.parametrize("form", ["yaml", "json"])
    def test_the_output_of_get_can_be_applied(self, queuectl: Cli, form: str) -> None:
        queuectl("apply", "-f", "-", stdin=EVERY)
        for kind in (
            "clusterqueues",
            "localqueues",
            "flavors",
            "priorityclasses",
            "configurations",
        ):
            printed = queuectl("get", kind, "-o", form)
            again = queuectl("apply", "-f", "-", stdin=printed.out)
            assert (again.code, again.err) == (0, "")
            assert again.out.endswith("unchanged\n")

    def test_the_items_of_a_list_from_kubectl_are_applied(self, queuectl: Cli) -> None:
        body = {"apiVersion": "v1", "kind": "List", "items": list(DOCUMENTS.values())}
        result = queuectl("apply", "-f", "-", stdin=json.dumps(body))
        assert (result.code, len(result.out.splitlines())) == (0, len(DOCUMENTS))

    def test_several_files_are_read(self, queuectl: Cli, tmp_path: Path) -> None:
        for number, document in enumerate((CLUSTER_QUEUE, LOCAL_QUEUE)):
            (tmp_path / f"{number}.yaml").write_text(stream(document))
        files = [f"--filename={path}" for path in sorted(tmp_path.iterdir())]
        assert queuectl("apply", *files).out.count("created") == 2

    def test_warnings_name_the_field_and_do_not_fail(self, queuectl: Cli) -> None:
        result = queuectl(
            "apply",
            "-f",
            "-",
            stdin=stream(replace_in(CLUSTER_QUEUE, concurrentAdmissionPolicy={"a": 1})),
        )
        assert result.code == 0
        assert "warning: ClusterQueue/team-a: spec.concurrentAdmissionPolicy" in result.err

    def test_an_unresolved_name_is_a_warning_unless_the_input_has_the_object(
        self, queuectl: Cli
    ) -> None:
        alone = queuectl("apply", "-f", "-", stdin=stream(CLUSTER_QUEUE))
        assert alone.code == 0
        assert alone.err == "warning: ClusterQueue team-a: ResourceFlavor h100 does not exist\n"
        every = queuectl("apply", "-f", "-", stdin=EVERY)  # the queue is first in this input
        assert "does not exist" not in every.err

    def test_documents_without_a_namespace_get_the_default(self, queuectl: Cli) -> None:
        document = {**LOCAL_QUEUE, "metadata": {"name": "default"}}
        result = queuectl("apply", "-n", "team-b", "-f", "-", stdin=stream(document))
        assert result.out == "localqueue/default in team-b created\n"

    def test_one_wrong_document_is_named_and_the_others_are_applied(self, queuectl: Cli) -> None:
        wrong = replace_in(CLUSTER_QUEUE, color="red")
        result = queuectl("apply", "-f", "-", stdin=stream(wrong, LOCAL_QUEUE))
        assert result.code == 2
        assert "error: stdin: document 1 (ClusterQueue/team-a): spec.color: unknown" in result.err
        assert "localqueue/default in team-a created" in result.out

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("kind: Pod\napiVersion: v1\n", "document 2 (Pod/): kind: v1 Pod is not configuration"),
            (
                "kind: ClusterQueue\napiVersion: apps/v1\n",
                "apiVersion apps/v1 of ClusterQueue is not read; use queuectl.dev/v1",
            ),
            ("kind: Cohort\napiVersion: queuectl.dev/v1\n", "metadata.name: is required"),
            ("a: [\n", "is not YAML"),
            ("- 1\n", "must be an object"),
        ],
    )
    def test_nothing_is_sent_when_a_document_cannot_be_addressed(
        self, queuectl: Cli, database: MemoryDatabase, text: str, says: str
    ) -> None:
        result = queuectl("apply", "-f", "-", stdin=stream(CLUSTER_QUEUE) + "---\n" + text)
        assert result.code == 2
        assert says in result.err
        assert not database.documents

    def test_a_missing_file_is_bad_input(self, queuectl: Cli) -> None:
        result = queuectl("apply", "-f", "nowhere.yaml")
        assert (result.code, result.err) == (2, "error: nowhere.yaml: No such file or directory\n")


def replace_in(document: dict[str, Any], **spec: object) -> dict[str, Any]:
    return {**document, "spec": {**document["spec"], **spec}}


class TestGet:
    @pytest.mark.parametrize(
        ("kind", "header", "row"),
        [
            ("cq", ["NAME", "GPUS", "PENDING", "RUNNING"], ["team-a", "?/64", "0", "0", "-"]),
            ("lq", ["NAMESPACE", "NAME", "CLUSTERQUEUE"], ["team-a", "default", "team-a"]),
            ("cohort", ["NAME", "PARENT"], ["all", "-"]),
            ("flavor", ["NAME", "TOPOLOGY", "NODE"], ["h100", "racks", "gpu=h100"]),
            ("Topology", ["NAME", "LEVELS"], ["racks", "rack", ">", "kubernetes.io/hostname"]),
            ("workloadpriorityclasses", ["NAME", "VALUE"], ["high", "1000", "before"]),
            (
                "qo",
                ["NAME", "CLUSTERQUEUE", "FLAVOR", "RESOURCE", "QUOTA", "FROM", "UNTIL"],
                ["deadline", "team-a", "h100", "nvidia.com/gpu", "+16", "2126-11-20T08:00:00Z"],
            ),
            (
                "config",
                ["NAME", "FAIR", "SHARING", "HALF"],
                ["default", "LessThanInitialShare", "-", "5m"],
            ),
        ],
    )
    def test_each_kind_has_a_table(
        self, queuectl: Cli, kind: str, header: list[str], row: list[str]
    ) -> None:
        queuectl("apply", "-f", "-", stdin=EVERY)
        first, second = queuectl("get", kind).out.splitlines()
        assert first.split()[: len(header)] == header
        assert second.split()[: len(row)] == row

    @pytest.mark.usefixtures("ledger")
    def test_workloads_are_a_table_of_states_and_reasons(self, queuectl: Cli) -> None:
        header, *rows = queuectl("get", "workloads").out.splitlines()
        assert "STATE" in header
        assert "UID" not in header
        names = [row.split()[1] for row in rows]
        assert set(names[:3]) == {"pending", "requeued", "reserved"}
        assert set(names[-3:]) == {"backoff", "deactivated", "held"}
        assert set(names) == set(LIVES) - {"finished"}
        every = queuectl("get", "jobs", "--all", "--no-headers").out.splitlines()
        assert [row.split()[1] for row in every] == [*names, "finished"]
        assert any(row.split()[7:9] == ["Pending", "WaitingForQuota"] for row in rows)

    def test_describe_shows_the_pods_of_a_partial_admission(
        self, queuectl: Cli, database: MemoryDatabase
    ) -> None:
        (placed,) = PLACED.podsets
        part = Placement((replace(placed, nodes=(("node-1", 3),), pods=3),))
        for change in live_through(job("part"), Admit(part)):
            MemoryStore(database)._write(change, 1)
        assert (
            "4 pods, 32 GPUs; 3 pods started"
            in queuectl("describe", "wl", "part", "-n", "team-a").out
        )

    @pytest.mark.usefixtures("ledger")
    def test_wide_adds_columns_and_cuts_nothing(self, queuectl: Cli) -> None:
        result = queuectl("get", "wl", "pending", "-n", "team-a", "-o", "wide")
        header, row = result.out.splitlines()  # and nothing is wrapped
        assert max(len(header), len(row)) > 80
        assert "uid-job-pending" in result.out
        assert "32 of 64 nvidia.com/gpu are in use" in result.out

    @pytest.mark.parametrize(
        ("name", "use"),
        [
            ("running", ["Idle", "0%"]),
            ("unready", ["Unknown", "unknown"]),
            ("pending", ["-", "-"]),
        ],
    )
    @pytest.mark.usefixtures("ledger")
    def test_wide_shows_the_gpu_use_of_gangs(
        self, queuectl: Cli, name: str, use: list[str]
    ) -> None:
        header, row = queuectl("get", "wl", name, "-n", "team-a", "-o", "wide").out.splitlines()
        at = header.index("GPU USE")
        assert row[at:].split()[:2] == use

    @pytest.mark.usefixtures("ledger")
    def test_json_is_what_the_api_answers(self, queuectl: Cli) -> None:
        body = json.loads(queuectl("get", "wl", "team-a/running", "-o", "json").out)
        assert (body["state"], body["name"]) == ("Running", "running")

    @pytest.mark.usefixtures("ledger")
    def test_filters_choose_and_names_can_be_piped(self, queuectl: Cli) -> None:
        options = ["--state", "Held", "--state", "Starting", "--cluster-queue", "team-a"]
        result = queuectl("get", "wl", *options, "-o", "name")
        assert result.out == "job/team-a/starting\njob/team-a/held\n"
        same = ["--state", "held,STARTING", "--cluster-queue", "team-a"]
        assert queuectl("get", "wl", *same, "-o", "name").out == result.out

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (
                ("jobs", "--state", "pendin"),
                "error: --state: unknown state 'pendin'; the states are",
            ),
            (("jobs", "--state", "held", "--all"), "error: --all excludes --state"),
            (("jobs", "--mine", "--user", "x"), "error: --mine excludes --user"),
            (("jobs", "--mine"), "error: --mine: this server does not authenticate its callers"),
            (("nodes", "--mine"), "error: --mine is for lists of workloads"),
            (("pods",), "error: to list pods, use `kubectl get pods`"),
            (("cluterqueues",), "error: unknown kind 'cluterqueues'; did you mean clusterqueues?"),
            (("qqq",), "error: unknown kind 'qqq'; `queuectl get` lists the kinds"),
            (("cq/team-a",), "error: unknown kind 'cq/team-a'; write kind and name as two words"),
            ((), "error: name a kind:\n  workloads "),
        ],
    )
    def test_a_wrong_list_names_the_right_one(
        self, queuectl: Cli, words: tuple[str, ...], message: str
    ) -> None:
        refused = queuectl("get", *words)
        assert (refused.code, refused.out) == (2, "")
        assert refused.err.startswith(message)

    @pytest.mark.usefixtures("ledger")
    def test_a_user_selects_workloads_and_a_key_sorts_them(self, queuectl: Cli) -> None:
        listed = queuectl("get", "wl", "-o", "name", "--sort", "name").out.splitlines()
        backwards = queuectl("get", "wl", "-o", "name", "--sort", "-name").out.splitlines()
        assert backwards == listed[::-1]
        assert queuectl("get", "wl", "-o", "name", "--user", "stranger").out == ""
        refused = queuectl("get", "wl", "--sort", "color")
        assert (refused.code, "sort" in refused.err) == (2, True)

    @pytest.mark.usefixtures("ledger")
    def test_an_empty_list_of_workloads_shows_which_name_is_unknown(self, queuectl: Cli) -> None:
        assert queuectl("apply", "-f", "-", stdin=EVERY).code == 0
        nothing = "no objects found\n"
        hint = "namespace nosuch has no LocalQueue: is the name right?\n" + nothing
        unseen = "does not exist, or you may not see it"
        table: dict[tuple[str, ...], tuple[int, str]] = {
            ("--user", "stranger"): (0, nothing),
            ("--queue", "default", "--user", "stranger"): (0, nothing),
            ("-n", "team-a", "--user", "stranger"): (0, nothing),
            ("-n", "nosuch"): (0, hint),
            ("--queue", "nosuch"): (3, f"error: LocalQueue nosuch {unseen} in any namespace\n"),
            ("-n", "team-a", "--queue", "nosuch"): (3, f"error: LocalQueue nosuch {unseen} in namespace team-a\n"),
            ("--cluster-queue", "team-a", "--user", "stranger"): (0, nothing),
            ("--cluster-queue", "nosuch"): (3, f"error: ClusterQueue nosuch {unseen}\n"),
        }  # fmt: skip
        for options, (code, err) in table.items():
            result = queuectl("get", "workloads", *options)
            assert (result.code, result.out, result.err) == (code, "", err), options
        for option, name, code in (
            ("--cluster-queue", "nosuch", 3),
            ("--cluster-queue", "team-a", 0),
            ("-n", "nosuch", 0),
        ):
            result = queuectl("get", "events", option, name, "--last", "1")
            expected = table.get((option, name), (0, nothing))
            assert (result.code, result.err) == (code, "" if result.out else expected[1]), name

    @pytest.mark.usefixtures("ledger")
    def test_a_list_is_in_the_order_of_the_api(self, queuectl: Cli) -> None:
        listed = [queuectl("get", "wl", "--all", "-o", "name", *sort).out for sort in ((), ("--sort", "-urgency"))]  # fmt: skip
        assert listed[0] == listed[1]
        assert {s: rank for s, rank in OF_STATES.items() if rank != 1} == URGENCY

    def test_all_pages_of_a_long_list_are_shown(
        self, queuectl: Cli, database: MemoryDatabase
    ) -> None:
        (change,) = live_through(job("many"))
        for number in range(1001):
            entry = replace(change.after, uid=f"uid-{number}", name=f"w-{number:04}")
            database.entries[entry.uid] = entry
        result = queuectl("get", "wl", "-o", "name")
        assert len(set(result.out.splitlines())) == 1001

    def test_an_empty_list_is_reported_on_stderr(self, queuectl: Cli) -> None:
        result = queuectl("get", "cohorts")
        assert (result.code, result.out, result.err) == (0, "", "no objects found\n")


class TestWait:
    @pytest.mark.parametrize(
        ("words", "code", "message"),
        [
            (("team-a/running",), 0, "job/team-a/running is Running: "),
            (("running", "-n", "team-a", "--for", "running"), 0, "job/team-a/running is Running: "),
            (("team-a/finished", "--for", "finished"), 0, "job/team-a/finished is Finished: "),
            (("team-a/finished",), 4, "error: "),
            (
                ("team-a/pending", "--timeout", "50ms"),
                1,
                "error: workload team-a/pending is still Pending; it did not reach Running in time",
            ),
            (("team-a/running", "-n", "team-b"), 2, "name different namespaces"),
            (("team-a/nowhere",), 3, "error: "),
            (
                ("job/team-a/running",),
                2,
                "'job/team-a/running' is neither NAME nor NAMESPACE/NAME: leave out the kind",
            ),
            (("PyTorchJob/running", "-n", "team-a"), 2, "NAMESPACE/NAME: leave out the kind"),
            (("team-a/",), 2, "'team-a/' is neither NAME nor NAMESPACE/NAME"),
            (("",), 2, "'' is neither NAME nor NAMESPACE/NAME"),
            (
                ("team-a/running", "--for", "ready"),
                2,
                "'ready' is not a state; the states are",
            ),
            (("team-a/pending", "--timeout", "soon"), 2, "--timeout: 'soon' is not a duration"),
        ],
    )
    @pytest.mark.usefixtures("ledger")
    def test_it_ends_in_the_state_or_states_why_not(
        self, queuectl: Cli, words: tuple[str, ...], code: int, message: str
    ) -> None:
        ended = queuectl("wait", *words)
        assert ended.code == code
        assert message in (ended.err if code else ended.out)


class TestExplain:
    @pytest.mark.usefixtures("ledger")
    def test_a_sentence_is_first_then_constraints_and_suggested_fixes(self, queuectl: Cli) -> None:
        lines = queuectl("explain", "pending", "-n", "team-a").out.splitlines()
        assert lines[0].startswith(
            "team-a/pending is pending, at position 1 in queue order of ClusterQueue team-a: 32 of"
        )
        assert "Reason:   WaitingForQuota" in lines
        at = lines.index("Blocking constraint:")
        assert lines[at:] == [
            "Blocking constraint:",
            "  - quota: it needs 40 GPUs, 32 are left",
            "",
            "Suggested fix:",
            "  - add quota for 8 more nvidia.com/gpu",
        ]

    def test_the_victims_of_a_reservation_are_named(
        self, queuectl: Cli, ledger: MemoryDatabase
    ) -> None:
        victim = replace(job("old"), uid="uid-victim")
        for change in live_through(victim, *LIVES["evicting"]):
            MemoryStore(ledger)._write(change, 1)
        out = queuectl("explain", "team-a/reserved").out
        assert "; victims: team-a/old\n" in out

    def test_one_pod_has_the_singular(self, queuectl: Cli, database: MemoryDatabase) -> None:
        place = Placement((PodSetPlacement("main", (("node-1", 1),)),))
        small = replace(job("small"), podsets=(PodSet("main", 1, PodShape(Resources({GPU: 1}))),))
        for change in live_through(small, Admit(place)):
            MemoryStore(database)._write(change, 1)
        explained = queuectl("explain", "team-a/small").out
        assert "is starting 1 pod on 1 node:" in explained
        assert "  main: 1 pod on node-1\n" in explained
        assert "Size:     1 pod, 1 GPU\n" in queuectl("describe", "wl", "team-a/small").out

    @pytest.mark.parametrize(
        ("name", "says"),
        [
            ("running", "It runs on:\n  worker: 4 pods of flavor h100 on node-1 (2), node-2 (2)"),
            ("reserved", "It will run on:\n  worker: 4 pods"),
        ],
    )
    @pytest.mark.usefixtures("ledger")
    def test_the_placement_is_shown(self, queuectl: Cli, name: str, says: str) -> None:
        assert says in queuectl("explain", f"team-a/{name}").out

    @pytest.mark.parametrize(
        ("name", "says"),
        [
            (
                "running",
                [
                    r"GPU use: Idle for \d\dm: its busiest GPU stayed below 1%",
                    r"  utilization 0%; 100% of its GPUs have metrics, evaluated \d+[sm] ago",
                ],
            ),
            (
                "unready",
                [
                    r"GPU use: Unknown for \d+m: w-3: no GPU of it is seen",
                    r"  utilization unknown; 50% of its GPUs have metrics, evaluated \d+[sm] ago",
                ],
            ),
        ],
    )
    @pytest.mark.usefixtures("ledger")
    def test_its_gpu_use_is_shown(self, queuectl: Cli, name: str, says: list[str]) -> None:
        lines = queuectl("explain", f"team-a/{name}").out.splitlines()
        for line, shown in zip(says, lines[-2:], strict=True):
            assert re.fullmatch(line, shown), shown
        assert "GPU use" not in queuectl("explain", "team-a/pending").out

    @pytest.mark.usefixtures("ledger")
    def test_programs_get_json_and_yaml(self, queuectl: Cli) -> None:
        as_json = queuectl("explain", "team-a/pending", "-o", "json").out
        as_yaml = queuectl("explain", "team-a/pending", "-o", "yaml").out
        assert json.loads(as_json) == yaml.safe_load(as_yaml)


class TestDescribe:
    @pytest.mark.usefixtures("ledger")
    def test_a_workload_has_its_history(self, queuectl: Cli) -> None:
        out = queuectl("describe", "workload", "team-a/requeued").out
        assert "Size:     4 pods, 32 GPUs" in out
        history = out.split("History:\n")[1].splitlines()
        assert [line.split()[1] for line in history] == [
            "Queued", "Admitted", "PodsReady", "Preempted", "Queued",
        ]  # fmt: skip

    @pytest.mark.usefixtures("ledger")
    def test_a_queue_has_counts_of_its_workloads(self, queuectl: Cli) -> None:
        queuectl("apply", "-f", "-", stdin=EVERY)
        for kind, name in (("cq", "team-a"), ("lq", "default")):
            out = queuectl("describe", kind, name, "-n", "team-a").out
            assert out.startswith(f"name: {name}\n")
            assert list(document := yaml.safe_load(out))[-1] == "workloads"
            assert document["workloads"] == (
                "2 Pending, 1 Held, 1 Reserved, 1 Starting, 2 Running, 2 Evicting, 1 Backoff, 1 Deactivated"
            )

    @pytest.mark.parametrize(
        ("spec", "expected"),
        [
            (
                {},
                "+16 nvidia.com/gpu of h100 from 2126-11-20T08:00:00Z until 2126-11-27T08:00:00Z (deadline)",
            ),
            (
                {"from": "2026-01-01T00:00:00Z"},
                "+16 nvidia.com/gpu of h100 until 2126-11-27T08:00:00Z (deadline)",
            ),
            ({"from": "2020-01-01T00:00:00Z", "until": "2020-01-02T00:00:00Z"}, None),
            ({"clusterQueue": "team-b"}, None),
        ],
    )
    def test_a_queue_has_its_quota_overrides_until_they_end(
        self, queuectl: Cli, spec: dict[str, Any], expected: str | None
    ) -> None:
        queuectl("apply", "-f", "-", stdin=stream(CLUSTER_QUEUE, replace_in(OVERRIDE, **spec)))
        shown = yaml.safe_load(queuectl("describe", "cq", "team-a").out)
        assert shown.get("overrides") == ([expected] if expected else None)

    @pytest.mark.parametrize(
        ("kind", "name", "keys"),
        [
            ("cq", "team-a", ["name", "kind", "version", "spec", "use", "overrides", "workloads"]),
            ("lq", "default", ["name", "namespace", "kind", "version", "spec", "workloads"]),
            ("flavor", "h100", ["name", "kind", "version", "spec"]),
            ("wpc", "high", ["name", "kind", "version", "value", "description"]),
        ],
    )
    def test_configuration_begins_with_its_name_and_nothing_is_left_out(
        self, queuectl: Cli, database: MemoryDatabase, kind: str, name: str, keys: list[str]
    ) -> None:
        queuectl("apply", "-f", "-", stdin=EVERY)
        for key, stored in database.documents.items():  # as jsonb gives it back: in its own order
            shuffled = json.loads(json.dumps(stored.document, sort_keys=True))
            database.documents[key] = replace(stored, document=shuffled)
        described = yaml.safe_load(queuectl("describe", kind, name, "-n", "team-a").out)
        assert sorted(described) == sorted(keys)
        assert list(described)[: len(keys) - 3] == keys[: len(keys) - 3]
        printed = yaml.safe_load(queuectl("get", kind, name, "-n", "team-a", "-o", "yaml").out)
        assert described.get("spec") == printed.get("spec")
        assert described.get("value") == printed.get("value")

    def test_the_fields_of_a_spec_are_ordered_names_first_and_nested_values_last(
        self, queuectl: Cli
    ) -> None:
        queuectl("apply", "-f", "-", stdin=EVERY)
        spec = yaml.safe_load(queuectl("describe", "cq", "team-a").out)["spec"]
        assert next(iter(spec)) == "queueingStrategy"
        assert set(spec) == {"queueingStrategy", "namespaceSelector", "resourceGroups"}
        (flavor,) = spec["resourceGroups"][0]["flavors"]
        assert list(flavor) == ["name", "resources"]
        assert list(flavor["resources"][0]) == ["name", "nominalQuota"]


class TestExitCodes:
    @pytest.mark.parametrize(
        ("arguments", "code"),
        [
            (["get", "cohort", "none"], 3),
            (["explain", "nobody"], 3),
            (["describe", "cq", "none"], 3),
            (["get", "unicorns"], 2),
            (["get", "cohorts", "--state", "Running"], 2),
            (["get", "wl", "--state", "Flying"], 2),
            (["get", "wl", "a/b", "-n", "c"], 2),
            (["get", "cohorts", "-o", "xml"], 2),
            (["get", "cohorts", "--server", "127.0.0.1:8000"], 2),
            (["fly"], 2),
            (["apply"], 2),
            (["--version"], 0),
        ],
    )
    def test_each_kind_of_failure_has_an_exit_code(
        self, queuectl: Cli, arguments: list[str], code: int
    ) -> None:
        result = queuectl(*arguments)
        assert (result.code, bool(result.err)) == (code, code != 0), result

    def test_two_workloads_of_one_name_are_a_conflict(
        self, queuectl: Cli, database: MemoryDatabase
    ) -> None:
        for kind in ("Job", "PyTorchJob"):
            (change,) = live_through(job("train", kind=kind))
            database.entries[change.after.uid] = change.after
        assert queuectl("explain", "team-a/train").code == 4
        assert queuectl("explain", "team-a/train", "--kind", "Job").code == 0

    def test_a_missing_server_is_a_failure_with_advice(self, queuectl: Cli) -> None:
        (port,) = free_ports(1)
        result = queuectl("get", "wl", "--server", f"http://127.0.0.1:{port}")
        assert result.code == 1
        assert "with --server or QUEUECTL_SERVER" in result.err

    def test_a_missing_database_is_a_failure(self, queuectl: Cli, database: MemoryDatabase) -> None:
        database.down = True
        result = queuectl("get", "wl")
        assert result.code == 1
        assert "database" in result.err


class TestAsk:
    @pytest.mark.usefixtures("ledger")
    @pytest.mark.parametrize(
        ("arguments", "name", "priority", "said"),
        [
            (["hold", "running"], "running", None, "hold requested"),
            (["release", "held"], "held", None, "release requested"),
            (["requeue", "backoff"], "backoff", None, "requeue requested"),
            (["preempt", "running"], "running", None, "preempt requested"),
            (["deactivate", "pending"], "pending", None, "deactivate requested"),
            (["activate", "deactivated"], "deactivated", None, "activate requested"),
            (["priority", "pending", "70"], "pending", 70, "priority 70 requested"),
            (
                ["priority", "pending", "--reset"],
                "pending",
                None,
                "reset of the priority requested",
            ),
        ],
    )
    def test_the_command_is_stored_for_the_leader_with_its_user(
        self,
        queuectl: Cli,
        database: MemoryDatabase,
        arguments: list[str],
        name: str,
        priority: int | None,
        said: str,
    ) -> None:
        result = queuectl(*arguments, "-n", "team-a", "--by", "alice")
        assert (result.code, result.out) == (0, f"job/team-a/{name}: {said}\n"), result.err
        (command,) = database.commands.values()
        assert (command.uid, command.action) == (f"uid-job-{name}", arguments[0])
        assert (command.by, command.priority) == ("alice", priority)

    @pytest.mark.usefixtures("ledger")
    def test_the_local_user_is_the_default_user(
        self, queuectl: Cli, database: MemoryDatabase, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("getpass.getuser", lambda: "bob")
        queuectl("hold", "team-a/running")
        assert [command.by for command in database.commands.values()] == ["bob"]

    @pytest.mark.usefixtures("ledger")
    @pytest.mark.parametrize(
        ("arguments", "code", "says"),
        [
            (["release", "team-a/running"], 4, "not held"),
            (["hold", "team-a/nobody"], 3, "does not exist"),
            (["priority", "team-a/running"], 2, "give a priority or --reset"),
            (["priority", "team-a/running", "1", "--reset"], 2, "give a priority or --reset"),
            (["priority", "team-a/running", "--reset", "--until", "1h"], 2, "--until and --reset"),
            (["priority", "team-a/running", "1", "--until", "tomorrow"], 2, "is not a duration"),
            (["priority", "team-a/running", "1", "--until", "2026-99-01"], 2, "RFC 3339"),
            (["priority", "team-a/running", "1", "--until", "2020-01-01T00:00:00Z"], 2, "future"),
            (["preempt", "team-a/pending"], 4, "only a running gang can be preempted"),
            (["preempt", "team-a/pending", "--dry-run"], 4, "only a running gang can be preempted"),
            (["move", "team-a/running", "other"], 4, "hold it first"),
            (["move", "team-a/pending", "nowhere"], 2, "does not exist in namespace team-a"),
        ],
    )
    def test_contradicting_arguments_are_refused(
        self, queuectl: Cli, database: MemoryDatabase, arguments: list[str], code: int, says: str
    ) -> None:
        result = queuectl(*arguments)
        assert result.code == code
        assert says in result.err
        assert not database.commands

    @pytest.mark.usefixtures("ledger")
    def test_a_priority_ends_at_a_time_or_after_a_duration(
        self, queuectl: Cli, database: MemoryDatabase
    ) -> None:
        at = "2126-01-31T12:00:00Z"
        result = queuectl("priority", "team-a/running", "70", "--until", at, "--reason", "a demo")
        assert result.out == f"job/team-a/running: priority 70 until {at} requested\n", result.err
        before = time.time()
        assert queuectl("priority", "team-a/running", "80", "--until", "1h30m").code == 0
        first, second = database.commands.values()
        assert (first.why, first.until) == ("a demo", 4925534400.0)
        assert second.until is not None
        assert before + 5400 - 1 <= second.until <= time.time() + 5400

    @pytest.mark.usefixtures("ledger")
    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            ({}, "Priority: 0"),
            ({"priority": 70, "priority_set": 70}, "Priority: 70, set by a user"),
            (
                {"priority": 70, "priority_set": 70, "priority_until": 4925534400.0},
                "Priority: 70, set by a user until 2126-01-31T12:00:00Z",
            ),
        ],
    )
    def test_describe_shows_a_priority_that_a_user_set_and_its_end(
        self, queuectl: Cli, database: MemoryDatabase, changes: dict[str, Any], says: str
    ) -> None:
        uid = "uid-job-pending"
        database.entries[uid] = replace(database.entries[uid], **changes)
        assert says in queuectl("describe", "workload", "pending", "-n", "team-a").out.splitlines()

    @pytest.mark.usefixtures("ledger")
    def test_a_move_names_its_queue(self, queuectl: Cli, database: MemoryDatabase) -> None:
        assert queuectl("apply", "-f", "-", stdin=stream(LOCAL_QUEUE)).code == 0
        result = queuectl("move", "team-a/pending", "default")
        assert result.out == "job/team-a/pending: move to default requested\n", result.err
        (command,) = database.commands.values()
        assert (command.action, command.queue) == ("move", "default")

    @pytest.mark.usefixtures("ledger")
    @pytest.mark.parametrize(
        ("outcome", "code", "says"),
        [
            ("done", 0, "job/team-a/running: done\n"),
            ("it was so already", 4, "refused: it was so already"),
            (None, 1, "has no result yet"),
        ],
    )
    def test_a_script_can_wait_for_the_result(
        self,
        queuectl: Cli,
        database: MemoryDatabase,
        monkeypatch: pytest.MonkeyPatch,
        outcome: str | None,
        code: int,
        says: str,
    ) -> None:
        def leader(_seconds: float) -> None:
            database.outcomes = dict.fromkeys(database.outcomes, outcome)

        monkeypatch.setattr("queuectl.client.client.time.sleep", leader)
        limit = "0" if outcome is None else "1m"
        result = queuectl("preempt", "team-a/running", "--wait", limit)
        assert result.code == code
        assert says in result.out + result.err

    @pytest.mark.usefixtures("ledger")
    def test_the_commands_of_a_workload_are_listed_with_their_results(
        self, queuectl: Cli, database: MemoryDatabase
    ) -> None:
        queuectl("hold", "team-a/running", "--by", "alice")
        queuectl("priority", "team-a/running", "70", "--by", "bob", "--reason", "a demo")
        queuectl("hold", "team-a/starting")
        database.outcomes[1] = "done"
        header, hold, priority = queuectl("get", "commands", "team-a/running").out.splitlines()
        titles = ["ID", "TIME", "AGE", "WORKLOAD", "ACTION", "TO", "BY", "STATE", "OUTCOME"]
        assert header.split() == titles
        assert hold.split()[3:] == ["team-a/running", "hold", "-", "alice", "Done", "done"]
        assert priority.split()[3:] == ["team-a/running", "priority", "70", "bob", "Waiting", "-"]
        assert "a demo" in queuectl("get", "command", "2", "-o", "wide").out
        named = queuectl(
            "get", "commands", "running", "-n", "team-a", "--kind", "Job", "-o", "name"
        )
        assert named.out == "command/1\ncommand/2\n"
        assert queuectl("get", "commands", "team-a/pending").err == "no objects found\n"
        assert [queuectl("get", "commands", name).code for name in ("9", "team-a/no")] == [3, 3]

    @pytest.mark.usefixtures("ledger")
    def test_the_commands_of_all_workloads_are_listed_newest_first(
        self, queuectl: Cli, database: MemoryDatabase
    ) -> None:
        queuectl("hold", "team-a/running", "--by", "alice")
        queuectl("priority", "team-a/running", "70", "--by", "bob")
        queuectl("hold", "team-a/starting", "--by", "alice")
        database.outcomes[1] = "done"
        for options, numbers in (
            ((), "3 2 1"),
            (("--last", "2"), "3 2"),
            (("--by", "alice"), "3 1"),
            (("--by", "alice", "--state", "Done"), "1"),
            (("--state", "Done", "--state", "Waiting"), "3 2 1"),
            (("-n", "team-a"), "3 2 1"),
        ):
            names = queuectl("get", "commands", *options, "-o", "name").out
            assert names.split() == [f"command/{number}" for number in numbers.split()]
        assert queuectl("get", "commands", "-n", "team-b").err == "no objects found\n"
        one = json.loads(queuectl("get", "command", "2", "-o", "json").out)
        assert one in json.loads(queuectl("get", "commands", "-o", "json").out)["items"]

    @pytest.mark.usefixtures("ledger")
    @pytest.mark.parametrize(
        ("preview", "says"),
        [
            pytest.param(
                Preview(Cost(0, 7260, Fraction(32)), 30.0, ("uid-job-pending",)),
                [
                    "job/team-a/running: preempt would evict 4 pods",
                    "  frees   32 GPUs",
                    "  loses   7260 GPU-seconds of work (2.0 GPU-hours)",
                    "  notice  30 s",
                    "  starts  team-a/pending",
                ],
                id="another starts",
            ),
            pytest.param(
                Preview(Cost(0, 60, Fraction(1)), 0.0, ("uid-job-running",)),
                [
                    "job/team-a/running: preempt would evict 4 pods",
                    "  frees   1 GPU",
                    "  loses   60 GPU-seconds of work (less than 0.1 GPU-hours)",
                    "  notice  none",
                    "  starts  itself again",
                ],
                id="it would start again itself",
            ),
            pytest.param(
                None,
                [
                    "job/team-a/running: preempt would evict 4 pods",
                    "  cost not known: this server does not watch the cluster yet",
                ],
                id="a process that knows no cluster",
            ),
        ],
    )
    def test_a_dry_run_shows_the_cost_and_the_gangs_that_would_start(
        self,
        queuectl: Cli,
        database: MemoryDatabase,
        diagnoser: FixedDiagnoser,
        preview: Preview | None,
        says: list[str],
    ) -> None:
        diagnoser.previews = {}
        if preview is not None:
            diagnoser.previews["uid-job-running", Action.PREEMPT] = preview
        result = queuectl("preempt", "team-a/running", "--dry-run")
        assert (result.code, result.out.splitlines()) == (0, says), result.err
        assert not database.commands

    @pytest.mark.usefixtures("ledger")
    def test_a_dry_run_for_a_pending_workload_evicts_no_pod(self, queuectl: Cli) -> None:
        out = queuectl("hold", "team-a/pending", "--dry-run").out
        assert out == (
            "job/team-a/pending would change, and no pod is evicted: "
            "it is held until it is released\n"
        )

    @pytest.mark.usefixtures("ledger")
    def test_describe_shows_positions_gates_and_conditions(self, queuectl: Cli) -> None:
        out = queuectl("describe", "workload", "requeued", "-n", "team-a").out
        assert "Position: 2 in ClusterQueue team-a, 2 in LocalQueue default" in out
        assert "Requeued       True" in out


def test_an_export_has_no_status(queuectl: Cli) -> None:
    times = {"from": "2126-03-01T01:00:00Z", "until": "2126-03-01T03:00:00Z"}
    body = {
        "apiVersion": "queuectl.dev/v1",
        "kind": "Reservation",
        "metadata": {"name": "maintenance"},
        "spec": {"nodes": ["n1"], **times},
    }
    queuectl("apply", "-f", "-", stdin=stream(body))
    assert "status" in json.loads(queuectl("get", "reservation", "maintenance", "-o", "json").out)
    exported = yaml.safe_load(queuectl("config", "export").out)
    assert exported.keys() == body.keys()


class TestStop:
    @pytest.fixture(autouse=True)
    def queues(self, queuectl: Cli) -> None:
        queuectl("apply", "-f", "-", stdin=EVERY)

    def test_a_queue_is_stopped_and_resumed_and_a_repetition_is_not_an_error(
        self, queuectl: Cli
    ) -> None:
        said = []
        for arguments in (
            ("stop", "clusterqueue", "team-a", "--reason", "new racks"),
            ("stop", "cq", "team-a"),
            ("stop", "clusterqueue", "team-a", "--drain"),
            ("resume", "clusterqueue", "team-a"),
            ("resume", "clusterqueue", "team-a"),
            ("stop", "localqueue", "default", "-n", "team-a"),
        ):
            result = queuectl(*arguments)
            assert result.code == 0, result.err
            said += result.out.splitlines()
        assert said == [
            "clusterqueue/team-a stopped; gangs that run continue",
            "clusterqueue/team-a is already stopped; gangs that run continue",
            "clusterqueue/team-a stopped; gangs that run are evicted",
            "clusterqueue/team-a resumed",
            "clusterqueue/team-a is not stopped",
            "localqueue/default in team-a stopped; gangs that run continue",
        ]

    @pytest.mark.parametrize("dry_run", [[], ["--dry-run"]])
    @pytest.mark.parametrize("verb", ["stop", "resume"])
    def test_a_refused_queue_is_named_and_the_others_follow(
        self, queuectl: Cli, verb: str, dry_run: list[str]
    ) -> None:
        other = {**CLUSTER_QUEUE, "metadata": {"name": "team-z"}}
        queuectl("apply", "-f", "-", stdin=stream(other))
        result = queuectl(verb, "clusterqueue", "team-a", "nowhere", "team-z", *dry_run)
        assert result.code == 3
        assert result.err == "error: clusterqueue/nowhere: ClusterQueue nowhere does not exist\n"
        changed = [line.split()[0] for line in result.out.splitlines()]
        assert changed == ["clusterqueue/team-a", "clusterqueue/team-z"]

    def test_a_dry_run_shows_what_a_drain_would_evict(
        self, queuectl: Cli, diagnoser: FixedDiagnoser
    ) -> None:
        drain = ("stop", "clusterqueue", "team-a", "--drain", "--dry-run")
        unknown = "clusterqueue/team-a would be stopped; evictions not known: this server does not watch the cluster yet; run the command again"
        diagnoser.drains = {}
        assert queuectl(*drain).out.splitlines() == [unknown]
        diagnoser.drains = {DocumentKey("ClusterQueue", "", "team-a"): DrainCost(2, 1, 48, 7200)}
        assert queuectl(*drain).out.splitlines() == [
            "clusterqueue/team-a would be stopped",
            "  evicts  2 gangs with 1 pod",
            "  frees   48 GPUs",
            "  loses   7200 GPU-seconds of work (2.0 GPU-hours)",
        ]
        held = queuectl("stop", "clusterqueue", "team-a", "--dry-run").out
        assert held == "clusterqueue/team-a would be stopped; gangs that run would continue\n"
        queuectl("stop", "clusterqueue", "team-a")
        again = queuectl("stop", "clusterqueue", "team-a", "--dry-run").out
        assert again == "clusterqueue/team-a would not change: its stop policy is already Hold\n"

    @pytest.mark.parametrize(
        ("arguments", "code", "says"),
        [
            (("clusterqueue", "nowhere"), 3, "ClusterQueue nowhere does not exist"),
            (
                ("cohort", "all"),
                2,
                "a Cohort cannot be stopped; a clusterqueue or a localqueue can",
            ),
            (("workload", "running"), 2, "use `queuectl hold` and `queuectl release`"),
        ],
    )
    def test_a_kind_that_cannot_be_stopped_is_refused(
        self, queuectl: Cli, arguments: tuple[str, ...], code: int, says: str
    ) -> None:
        for verb in ("stop", "resume"):
            result = queuectl(verb, *arguments)
            assert (result.code, result.out) == (code, "")
            assert says in result.err
