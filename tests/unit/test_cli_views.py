"""``top``, ``history``, ``audit``, ``config`` and ``completion`` against a running API."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from queuectl.api.auth.layers import AuthenticationLayer
from queuectl.cli import explain
from queuectl.cli.main import run
from queuectl.cli.render import as_yaml
from queuectl.cli.top import screen, summed
from queuectl.domain.identity import Right
from queuectl.domain.snapshot import PlannedStart
from queuectl.domain.utilization import GangUse, UseState
from queuectl.domain.workload import Placement, PodSetPlacement
from queuectl.objects.configuration.config_kinds import CUSTOM_KINDS
from tests.api.serving import serving
from tests.api.support import CLUSTER_QUEUE, DOCUMENTS, LIVES, FixedDiagnoser, job, live_through
from tests.doubles.access import MemoryAccess
from tests.doubles.store import MemoryDatabase, MemoryStore
from tests.support.cli import Cli, Result, queuectl_with

NOW = time.time()
IDLE = GangUse("", 1, UseState.IDLE, NOW - 2400, NOW, 0.25, 1.0, "quiet")


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[MemoryStore, str]]:
    store, diagnoser = MemoryStore(), FixedDiagnoser()
    diagnoser.uses = {"uid-job-running": IDLE}
    with serving(store, diagnoser) as address:
        yield store, address


@pytest.fixture
def store(running: tuple[MemoryStore, str]) -> MemoryStore:
    running[0].database = MemoryDatabase()
    return running[0]


@pytest.fixture
def queuectl(
    running: tuple[MemoryStore, str],
    store: MemoryStore,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Any,
) -> Cli:
    """Runs the program in this process; ``stdin`` is given as a file."""
    monkeypatch.setenv("QUEUECTL_SERVER", running[1])
    monkeypatch.setenv("KUBECONFIG", "/nowhere")

    def call(*arguments: str, files: str = "") -> Result:
        given = tmp_path / "given.yaml"
        given.write_text(files)
        parts = [str(given) if part == "FILE" else part for part in arguments]
        return queuectl_with(monkeypatch, capsys, *parts)

    return call


@pytest.fixture
def ledger(store: MemoryStore) -> None:
    """A workload in every state, with its history."""
    for name, life in LIVES.items():
        for change in live_through(job(name), *life):
            store._write(change, 1)


EVERY = yaml.safe_dump_all(DOCUMENTS.values())
OVERRIDE = {
    "apiVersion": "queuectl.dev/v1",
    "kind": "QuotaOverride",
    "metadata": {"name": "deadline"},
    "spec": {
        "clusterQueue": "team-a",
        "flavor": "h100",
        "resource": "nvidia.com/gpu",
        "add": 8,
        "from": "2020-01-01T00:00:00Z",
        "until": "9999-01-01T00:00:00Z",
        "reason": "a deadline",
    },
}


class TestHistory:
    @pytest.mark.usefixtures("ledger")
    def test_the_first_line_has_the_last_eviction_and_its_reason(self, queuectl: Cli) -> None:
        head, titles, *rows = queuectl("history", "team-a/requeued").out.splitlines()
        assert head.startswith("job/team-a/requeued is Pending; started 1 time, evicted 1 time,")
        down = next(row for row in rows if "Evicting" in row)
        assert head.endswith(down.split("   ")[-1].strip())
        assert titles.split() == ["TIME", "EVENT", "STATE", "REASON", "MESSAGE"]

    @pytest.mark.usefixtures("ledger")
    def test_a_wide_history_has_the_nodes_of_each_attempt(self, queuectl: Cli) -> None:
        _, titles, *rows = queuectl("history", "team-a/running", "-o", "wide").out.splitlines()
        at = titles.index("NODES")
        assert [row[at:].split()[0] for row in rows if row] == ["-", "node-1,node-2", "-"]

    @pytest.mark.usefixtures("ledger")
    def test_evictions_can_be_selected(self, queuectl: Cli) -> None:
        body = json.loads(queuectl("history", "team-a/requeued", "--evictions", "-o", "json").out)
        assert [item["toState"] for item in body["items"]] == ["Evicting"]

    @pytest.mark.usefixtures("ledger")
    def test_a_workload_without_evictions_is_shown_as_such(self, queuectl: Cli) -> None:
        out = queuectl("history", "team-a/running").out
        assert out.startswith("job/team-a/running is Running; started 1 time, never evicted\n")

    def test_an_unknown_workload_has_no_history(self, queuectl: Cli) -> None:
        assert queuectl("history", "team-a/nobody").code == 3


class TestExplain:
    @pytest.mark.usefixtures("ledger")
    @pytest.mark.parametrize(
        ("name", "advice"),
        [
            ("held", "Next:     queuectl release team-a/held queues it again"),
            ("deactivated", "Next:     queuectl activate team-a/deactivated queues it again"),
            ("backoff", "Next:     queuectl requeue team-a/backoff queues it at once"),
            ("running", None),
            ("pending", None),
        ],
    )
    def test_a_command_that_helps_is_named(
        self, queuectl: Cli, name: str, advice: str | None
    ) -> None:
        lines = queuectl("explain", f"team-a/{name}").out.splitlines()
        assert [line for line in lines if line.startswith("Next:")] == ([advice] if advice else [])

    @pytest.mark.usefixtures("ledger")
    @pytest.mark.parametrize(
        ("name", "says"),
        [
            ("evicting", "It still occupies:"),
            ("running", "It runs on:"),
            ("reserved", "It will run on:"),
        ],
    )
    def test_its_placement_is_shown_with_its_role(
        self, queuectl: Cli, name: str, says: str
    ) -> None:
        assert says in queuectl("explain", f"team-a/{name}").out.splitlines()

    def test_a_planned_start_is_shown_with_its_nodes_and_the_gangs_that_end_before(
        self, queuectl: Cli, store: MemoryStore
    ) -> None:
        placement = Placement((PodSetPlacement("main", (("node-2", 1), ("node-1", 1))),))
        at = time.time() + 10 * 3600 + 1800
        start = PlannedStart(at, placement, at, (("uid-gone", at - 3600),))
        for change in live_through(job("pending"), *LIVES["pending"]):
            store._write(replace(change, after=replace(change.after, planned_start=start)), 1)
        lines = queuectl("explain", "team-a/pending").out.splitlines()
        line = lines.index("Planned:  start in 10h on node-1, node-2")
        assert lines[line + 1] == "          after the end of uid-gone (in 9h)"

    @pytest.mark.parametrize(
        ("run_time", "line"),
        [
            (
                {"source": "Learned", "seconds": 4500.0, "quantile": 0.8, "median": 2400.0, "gangs": 12, "error": 540.0},
                "Run time: at most 75m with a probability of 80%; median 40m, learned from 12 gangs; median error 9m",
            ),
            (
                {"source": "Limit", "seconds": 7200.0, "median": 2400.0, "gangs": 1, "error": None},
                "Run time: at most 2h, its limit; median 40m, learned from 1 gang",
            ),
            (
                {"source": "Stated", "seconds": 600.0, "median": None, "gangs": 0, "error": None},
                "Run time: 10m, as the job states",
            ),
        ],
    )  # fmt: skip
    @pytest.mark.usefixtures("ledger")
    def test_the_run_time_of_a_gang_has_its_source_and_its_error(
        self, queuectl: Cli, run_time: dict[str, Any], line: str
    ) -> None:
        body = json.loads(queuectl("explain", "team-a/pending", "-o", "json").out)
        assert body["runTime"] is None
        assert line in explain.explain_lines({**body, "runTime": run_time})

    @pytest.mark.usefixtures("ledger")
    def test_an_explanation_states_what_is_not_proved_and_what_a_reservation_waits_for(
        self, queuectl: Cli
    ) -> None:
        body = json.loads(queuectl("explain", "team-a/pending", "-o", "json").out)
        checks = [{"name": "budget", "state": "Ready"}, {"name": "image", "state": "Pending"}]
        changed = {
            "conflict": [{"message": "quota"}],
            "conflictProof": "feasible",
            "reservation": {"expiresAt": None, "victimNames": []},
            "checks": checks,
        }
        lines = explain.explain_lines(body | changed)
        assert "Reserved until its admission checks are ready: image" in lines
        title = "Blocking constraint (the solver reached its limit, so the list can include constraints that do not block it):"
        assert title in lines
        assert "Blocking constraint:" in explain.explain_lines(
            body | changed | {"conflictProof": "optimal"}
        )

    def test_on_a_terminal_lines_are_wrapped_between_words(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "40")
        line = "  - quota: it needs 64 nvidia.com/gpu of flavor h100"
        assert explain.folded([line, ""]) == [line, ""]
        monkeypatch.setattr("sys.stdout.isatty", lambda: True)
        assert explain.folded([line, ""]) == [
            "  - quota: it needs 64 nvidia.com/gpu of",
            "    flavor h100",
            "",
        ]


class TestAudit:
    def test_changes_are_listed_the_newest_first(self, queuectl: Cli) -> None:
        queuectl("apply", "-f", "FILE", files=EVERY)
        body = json.loads(queuectl("audit", "-o", "json", "--last", "2").out)
        assert [item["method"] for item in body["items"]] == ["PUT", "PUT"]
        assert body["items"][0]["id"] > body["items"][1]["id"]
        header, *rows = queuectl("audit", "--path", "/api/v1/cohorts").out.splitlines()
        assert header.split()[:4] == ["TIME", "USER", "WHAT", "RESULT"]
        assert ["apply Cohort all" in row and "done: created" in row for row in rows] == [True]
        assert queuectl("audit", "--since", "1h", "-o", "name").out.count("audit/") == len(
            DOCUMENTS
        )
        assert queuectl("audit", "--since", "2126-01-01T00:00:00Z").err == "no objects found\n"

    def test_a_wrong_time_is_bad_input(self, queuectl: Cli) -> None:
        assert queuectl("audit", "--since", "yesterday").code == 2


class TestConfig:
    def test_an_export_applies_unchanged_and_has_no_versions(self, queuectl: Cli) -> None:
        queuectl("apply", "-f", "FILE", files=EVERY)
        exported = queuectl("config", "export").out
        assert "resourceVersion" not in exported
        assert all(
            list(d)[:3] == ["apiVersion", "kind", "metadata"] for d in yaml.safe_load_all(exported)
        )
        assert len(list(yaml.safe_load_all(exported))) == len(DOCUMENTS)
        assert queuectl("config", "diff", "-f", "FILE", files=exported).code == 0
        part = yaml.safe_dump(CLUSTER_QUEUE)
        assert queuectl("config", "diff", "-f", "FILE", files=part).code == 4
        again = queuectl("apply", "-f", "FILE", files=exported)
        assert (again.code, again.out.count("unchanged")) == (0, len(DOCUMENTS))

    def test_an_export_for_kubectl_has_only_kinds_with_a_crd(self, queuectl: Cli) -> None:
        queuectl("apply", "-f", "FILE", files=EVERY)
        exported = list(yaml.safe_load_all(queuectl("config", "export", "--kubernetes").out))
        custom = {kind.kind for kind in CUSTOM_KINDS}
        assert [one["kind"] for one in exported if one["kind"] not in custom] == []
        assert {one["kind"] for one in exported} == custom & {
            one["kind"] for one in DOCUMENTS.values()
        }

    @pytest.mark.parametrize("amount", ["1e3", "1e30", ".5e-3", "+2.E6", "0o17"])
    def test_a_quantity_that_kubectl_would_read_as_a_number_is_quoted(self, amount: str) -> None:
        assert as_yaml({"nominalQuota": amount}) == f'nominalQuota: "{amount}"\n'

    @pytest.mark.parametrize("metadata", [{}, {"namespace": ""}, {"namespace": None}])
    def test_an_object_without_a_namespace_is_compared_in_the_default_namespace(
        self, queuectl: Cli, metadata: dict[str, object]
    ) -> None:
        local = DOCUMENTS["/api/v1/namespaces/team-a/localqueues/default"]
        nowhere = {**local, "metadata": {"name": "default", **metadata}}
        files = yaml.safe_dump_all([CLUSTER_QUEUE, nowhere])
        assert queuectl("apply", "-f", "FILE", files=files).code == 0
        result = queuectl("config", "diff", "-f", "FILE", files=files)
        assert (result.code, result.out) == (0, "")

    def test_every_difference_is_named(self, queuectl: Cli) -> None:
        queuectl("apply", "-f", "FILE", files=EVERY)
        changed = {**CLUSTER_QUEUE, "spec": {**CLUSTER_QUEUE["spec"], "stopPolicy": "Hold"}}
        new = {"apiVersion": "queuectl.dev/v1", "kind": "Cohort", "metadata": {"name": "new"}}
        mine = [d for d in DOCUMENTS.values() if d["kind"] not in ("ClusterQueue", "LocalQueue")]
        files = yaml.safe_dump_all([*mine, changed, new])
        result = queuectl("config", "diff", "-f", "FILE", files=files)
        assert (result.code, result.err) == (4, "")
        assert result.out.splitlines() == [
            "clusterqueue/team-a differs",
            "    spec.stopPolicy: (none) -> Hold",
            "cohort/new is missing on the server",
            "localqueue/default in team-a is in no file",
        ]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_needs_no_server(
    shell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["queuectl", "completion", shell])
    with pytest.raises(SystemExit):
        run()
    assert f"_QUEUECTL_COMPLETE=complete_{shell}" in capsys.readouterr().out


class TestTop:
    @pytest.mark.usefixtures("ledger")
    def test_in_a_pipe_it_prints_three_tables_once(self, queuectl: Cli) -> None:
        queuectl("apply", "-f", "FILE", files=EVERY)
        queues, holding, waiting = queuectl("top").out.split("\n\n")
        assert queues.splitlines()[0].split()[:4] == [
            "CLUSTERQUEUE",
            "QUOTA",
            "GPUS",
            "UTILIZATION",
        ]
        assert queues.splitlines()[1].split()[:2] == ["team-a", "64"]
        running = next(line for line in holding.splitlines() if "team-a/running" in line)
        assert running.split()[-2:] == ["25%", "Idle"]
        first, second = (line.split() for line in waiting.splitlines()[1:3])
        assert (first[3], second[3]) == ("1", "2")

    def test_an_empty_cluster_is_reported(self, queuectl: Cli) -> None:
        assert queuectl("top").err == "no gang is admitted or pending\n"

    @pytest.mark.parametrize("interval", ["0.5", "nan", "inf", "1e12"])
    def test_an_interval_that_no_terminal_waits_for_is_refused(
        self, queuectl: Cli, interval: str
    ) -> None:
        refused = queuectl("top", "--once", "--interval", interval)
        assert (refused.code, "--interval" in refused.err) == (2, True)

    @pytest.mark.usefixtures("ledger")
    def test_a_team_lead_sees_the_queues_of_the_team_with_their_overrides(
        self,
        store: MemoryStore,
        queuectl: Cli,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
    ) -> None:
        """The role queuectl-team-admin in a namespace has no right to the configuration of ClusterQueues."""
        queuectl("apply", "-f", "FILE", files=EVERY)
        queuectl("apply", "-f", "FILE", files=yaml.safe_dump(OVERRIDE))
        access = MemoryAccess()
        access.know("of-the-lead", "lead", Right("list", "workloads", "team-a"))
        (tmp_path / "token").write_text("of-the-lead")
        monkeypatch.setenv("QUEUECTL_TOKEN_FILE", str(tmp_path / "token"))
        with serving(store, authenticated=AuthenticationLayer(access)) as address:
            seen = queuectl("top", "--once", "--server", address)
            named = queuectl("get", "cq", "-o", "name", "--server", address)
            refused = [
                queuectl(*words.split(), "--server", address)
                for words in (
                    "get cq -o wide",
                    "get cq -o json",
                    "get cq team-a -o yaml",
                    "describe cq team-a",
                )
            ]
        assert (seen.code, seen.err) == (0, "")
        assert seen.out.splitlines()[1].split()[:2] == ["team-a", "72"]
        assert (named.code, named.out) == (0, "clusterqueue/team-a\n")
        for one in refused:
            assert (one.code, one.out) == (5, "")
            assert "`queuectl get clusterqueues` lists the use of your queues" in one.err

    @pytest.mark.usefixtures("ledger")
    def test_on_a_terminal_it_runs_until_q(self, running: tuple[MemoryStore, str]) -> None:
        ours, theirs = pty.openpty()
        code = (
            "import sys; sys.argv = ['queuectl', 'top']; from queuectl.cli.main import run; run()"
        )
        environment = {
            **os.environ, "QUEUECTL_SERVER": running[1], "KUBECONFIG": "/nowhere",
            "TERM": "xterm", "COLUMNS": "100", "LINES": "30",
        }  # fmt: skip
        with subprocess.Popen(
            [sys.executable, "-c", code], env=environment, stdin=theirs, stdout=theirs
        ) as program:
            os.close(theirs)
            seen = b""
            while b"press q to exit" not in seen:
                seen += os.read(ours, 65536)
            os.write(ours, b"q")
            assert program.wait(60) == 0
        os.close(ours)
        assert b"team-a/running" in seen


def gang(name: str, state: str, gpus: int, **more: Any) -> dict[str, Any]:
    return {
        "namespace": "n", "name": name, "state": state, "gpus": gpus, "clusterQueue": "q",
        "reason": {"code": "WaitingForQuota", "message": ""}, "use": None, "since": None,
        "queuedAt": None, "positionInClusterQueue": None, "expectedStart": None, **more,
    }  # fmt: skip


def test_unknown_gpu_use_does_not_count_as_idle() -> None:
    busy = gang("a", "Running", 8, use={"utilization": 0.5, "state": "Active"})
    (queue,) = summed([], [busy, gang("b", "Running", 8), gang("c", "Pending", 16)])
    assert (queue.held, queue.used, queue.unmeasured, queue.idle) == (16, 4, 8, 0)
    assert (queue.waiting, queue.waiting_gpus) == (1, 16)


@pytest.mark.parametrize(("running", "waiting"), [(0, 0), (3, 200), (200, 3), (200, 200)])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 60), (60, 12)])
def test_a_screen_fits_the_terminal(running: int, waiting: int, width: int, height: int) -> None:
    seen = (
        summed([], [gang("a", "Running", 8)]),
        [gang(f"running-{n}", "Running", 8) for n in range(running)],
        [gang(f"waiting-{n}", "Pending", 8) for n in range(waiting)],
    )
    console = Console(width=width, height=height, force_terminal=False)
    with console.capture() as captured:
        console.print(screen(seen, width, height, "foot"))
    lines = captured.get().splitlines()
    assert len(lines) <= max(height, 14)
    assert max(map(len, lines)) <= width
    assert ("running-0" in captured.get()) == bool(running)
    assert ("waiting-0" in captured.get()) == bool(waiting)
