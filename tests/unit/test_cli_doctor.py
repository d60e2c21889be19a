"""``queuectl doctor``: the findings of each check, and their fixes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx2
import pytest
from prometheus_client.samples import Sample

from queuectl.cli.doctor import judge, shadow, technologies
from queuectl.cli.doctor.cluster import checked_node
from queuectl.cli.doctor.findings import Finding, Level
from queuectl.cli.doctor.server import examine, of_metrics
from queuectl.cli.main import run
from queuectl.client import Client
from queuectl.cluster.server import Server
from queuectl.control.bundled_database import ROLES, BundledSettings
from queuectl.domain.fleet import HOSTNAME
from queuectl.domain.ledger import Checked, Invariant, InvariantViolation
from queuectl.domain.records import LeaderRecord
from tests.api.serving import serving
from tests.api.support import FixedDiagnoser
from tests.doubles.store import MemoryStore

OK, WARNING, PROBLEM, UNKNOWN = Level.OK, Level.WARNING, Level.PROBLEM, Level.UNKNOWN
LABELS = {"gpu": "h100", "rack": "r1"}
FLAVOR = {
    "metadata": {"name": "h100"},
    "spec": {"nodeLabels": {"gpu": "h100"}, "topologyName": "racks"},
}
TOPOLOGY = {
    "metadata": {"name": "racks"},
    "spec": {"levels": [{"nodeLabel": "rack"}, {"nodeLabel": HOSTNAME}]},
}


def node(
    name: str, labels: dict[str, str] | None = None, *, gpus: int = 8, ready: bool = True
) -> judge.CheckedNode:
    return judge.CheckedNode(name, labels or {}, gpus, ready)


def levels(findings: Sequence[Finding]) -> list[Level]:
    for finding in findings:
        assert (finding.level is OK) == (not finding.fix) or finding.level is UNKNOWN, finding
    return [finding.level for finding in findings]


@pytest.mark.parametrize(
    ("version", "level", "needs"),
    [
        ((1, 32), PROBLEM, ""),
        ((1, 33), OK, "the webhook for new jobs"),
        ((1, 35), OK, "the right to patch the status of Jobs"),
        ((1, 36), OK, ""),
        ((2, 0), OK, ""),
    ],
)
def test_the_version_of_the_cluster_is_reported_with_its_needs(
    version: tuple[int, int], level: Level, needs: str
) -> None:
    server = Server(version)
    (finding,) = judge.server_version(str(server), "1.33", server.needs, old=not server.supported)
    assert levels([finding]) == [level]
    assert needs in finding.message
    assert ("needs" in finding.message) == bool(needs)


def test_the_bundled_database_is_a_warning() -> None:
    host = f"{judge.BUNDLED_SERVICE}.queuectl-system.svc"
    settings = BundledSettings(Path("/data"), host, "", "", "", "")
    for role in ROLES.values():
        (finding,) = judge.bundled(settings.url(role, "x"))
        assert finding.level is WARNING
        assert "no backup" in finding.message
    for others in (
        "postgresql://queuectl:x@db.example.com/queuectl",
        "postgresql:///queuectl?host=/run/queuectl-database.a.svc",
        "postgresql://queuectl_leader:x@queuectl-database-rw.queuectl-system.svc/queuectl",
    ):
        assert judge.bundled(others) == []


@pytest.mark.parametrize(
    ("policies", "webhook", "has_policies", "level", "words"),
    [
        (True, False, True, OK, "MutatingAdmissionPolicies change"),
        (False, True, False, OK, "the webhook changes new jobs"),
        (False, True, True, OK, "can replace it"),
        (True, True, True, WARNING, "both change"),
        (False, False, True, PROBLEM, "nothing changes"),
        (False, False, False, PROBLEM, "nothing changes"),
    ],
)
def test_what_changes_new_jobs_is_named(
    policies: bool, webhook: bool, has_policies: bool, level: Level, words: str
) -> None:
    (finding,) = judge.mutation(policies=policies, webhook=webhook, has_policies=has_policies)
    assert finding.level is level
    assert words in finding.message
    assert bool(finding.fix) == (level is not OK)


def test_each_missing_right_is_named() -> None:
    assert levels(judge.rights([])) == [OK]
    (finding,) = judge.rights(["patch pods"])
    assert (finding.level, "lacks rights: patch pods" in finding.message) == (PROBLEM, True)


@pytest.mark.parametrize(
    ("missing", "expected"),
    [([], [OK]), (["ValidatingAdmissionPolicy queuectl-jobs"], [PROBLEM])],
)
def test_each_object_of_deploy_is_needed(missing: list[str], expected: list[Level]) -> None:
    assert levels(judge.objects(missing)) == expected


def test_installed_policies_must_have_effect() -> None:
    assert levels(judge.acting([])) == [OK]
    assert levels(judge.acting(["a pod without a gate came through"])) == [PROBLEM]


@pytest.mark.parametrize(
    ("record", "level"),
    [
        (None, PROBLEM),
        (LeaderRecord("", 1, 100.0, 15.0, "1"), PROBLEM),
        (LeaderRecord("pod-1", 1, 100.0, 15.0, "1"), OK),
        (LeaderRecord("pod-1", 1, 80.0, 15.0, "1"), PROBLEM),
    ],
)
def test_there_must_be_a_leader_with_a_valid_lease(
    record: LeaderRecord | None, level: Level
) -> None:
    assert levels(judge.leader(record, 110.0)) == [level]


def deployment(name: str, image: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "system"},
        "spec": {"template": {"spec": {"containers": [{"image": image}]}}},
    }


@pytest.mark.parametrize(
    ("name", "image", "who"),
    [
        ("kueue-controller-manager", "registry.k8s.io/kueue/kueue:v0.15", "Kueue"),
        ("volcano-scheduler", "docker.io/volcanosh/vc-scheduler:v1.13", "Volcano"),
        ("scheduler", "ghcr.io/kai-scheduler/scheduler:v0.9", "KAI"),
        ("second", "registry.k8s.io/scheduler-plugins/coscheduling:v1", "coscheduling"),
        ("yunikorn-scheduler", "apache/yunikorn:1", "YuniKorn"),
        ("queuectl", "example/queuectl:1", None),
        ("monkueue", "example/monkueue:1", None),
    ],
)
def test_other_gang_controllers_are_named(name: str, image: str, who: str | None) -> None:
    (finding,) = judge.foreign([deployment(name, image)])
    assert finding.level is (OK if who is None else WARNING)
    if who is not None:
        assert finding.message.startswith(f"{who} runs here (system/{name})")


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([], [PROBLEM]),
        ([node("a", gpus=0)], [PROBLEM]),
        ([node("a"), node("b", gpus=0, ready=False)], [OK]),
        ([node("a"), node("b", ready=False)], [OK, WARNING]),
    ],
)
def test_there_must_be_gpus_on_nodes_that_are_ready(
    found: list[judge.CheckedNode], expected: list[Level]
) -> None:
    assert levels(judge.nodes(found)) == expected


@pytest.mark.parametrize(
    ("found", "expected", "says"),
    [
        ([node("a", LABELS)], [OK], "1 node, all with the labels"),
        ([node("a", {"gpu": "h100"}), node("b", LABELS)], [PROBLEM], "1 of 2 nodes"),
        ([node("a", {"gpu": "a100"})], [WARNING, WARNING], "no node matches ResourceFlavor h100"),
        ([node("a", LABELS), node("b")], [OK, WARNING], "1 node, all with the labels"),
        ([node("a", LABELS), node("cpu", gpus=0)], [OK], "all with the labels"),
    ],
)
def test_nodes_must_have_the_labels_of_flavors_and_topologies(
    found: list[judge.CheckedNode], expected: list[Level], says: str
) -> None:
    findings = judge.labels(found, [FLAVOR], [TOPOLOGY])
    assert levels(findings) == expected
    assert says in findings[0].message


def test_nodes_that_no_gang_can_use_are_counted() -> None:
    spare = [node("a", {}), node("b", {})]
    _, two = judge.labels([node("c", LABELS), *spare], [FLAVOR], [TOPOLOGY])
    _, one = judge.labels([node("c", LABELS), spare[0]], [FLAVOR], [TOPOLOGY])
    assert two.message.startswith(
        "2 nodes with GPUs match no ResourceFlavor, so no gang can use them"
    )
    assert one.message.startswith(
        "1 node with GPUs matches no ResourceFlavor, so no gang can use it"
    )
    assert one.fix == "add the labels of a ResourceFlavor to it, or create a ResourceFlavor for it"


def test_many_nodes_are_not_all_named() -> None:
    unlabeled = [node(f"n{number}", {"gpu": "h100"}) for number in range(5)]
    (finding,) = judge.labels(unlabeled, [FLAVOR], [TOPOLOGY])
    assert finding.message.endswith("n0, n1, n2 and 2 more")
    assert finding.fix == "kubectl label node n0 rack=…"


@pytest.mark.parametrize(
    ("allocatable", "says"),
    [
        ({"nvidia.com/gpu": "8"}, "8 GPUs on 1 of 1 nodes"),
        ({"nvidia.com/gpu": "1k", "cpu": "1500m"}, "1000 GPUs on 1 of 1 nodes"),
        ({"nvidia.com/gpu": "0", "nvidia.com/mig-1g.10gb": "56"}, "8 GPUs on 1 of 1 nodes"),
        ({"nvidia.com/gpu.shared": "4"}, "4 GPUs on 1 of 1 nodes"),
        ({"gpu.intel.com/i915": "2"}, "2 GPUs on 1 of 1 nodes"),
        ({"amd.com/gpu": "8"}, "8 GPUs on 1 of 1 nodes"),
        ({"cpu": "64"}, "none of 1 nodes offers GPUs"),
    ],
)
def test_gpus_of_each_vendor_and_their_parts_count(allocatable: dict[str, str], says: str) -> None:
    document = {"metadata": {"name": "n"}, "status": {"allocatable": allocatable}}
    assert judge.nodes([checked_node(document)])[0].message == says


def test_missing_flavors_are_a_warning() -> None:
    assert levels(judge.labels([node("a")], [], [])) == [WARNING]


@pytest.mark.parametrize(
    ("policy", "wanted"),
    [
        (None, []),
        ({"migConfigs": {}}, []),
        ({"migReconfiguration": "Plan"}, []),
        ({"migReconfiguration": "Execute"}, ["h100"]),
    ],
)
def test_flavors_that_permit_changes_of_mig_are_found(
    policy: dict[str, Any] | None, wanted: list[str]
) -> None:
    spec = {} if policy is None else {"policy": policy}
    assert technologies.reconfigured([{**FLAVOR, "spec": spec}]) == wanted


@pytest.mark.parametrize(
    ("refused", "missing", "level", "text"),
    [
        ([], [], OK, "1 ResourceFlavor with migReconfiguration: Execute (h100)"),
        (["patch nodes"], [], WARNING, "lacks rights: patch nodes"),
        (
            [],
            ["ValidatingAdmissionPolicy p"],
            WARNING,
            "not installed: ValidatingAdmissionPolicy p",
        ),
    ],
)
def test_changes_of_mig_need_the_rights_and_the_policy_of_the_opt_in(
    refused: list[str], missing: list[str], level: Level, text: str
) -> None:
    (finding,) = technologies.mig(["h100"], refused, missing)
    assert (levels([finding]), text in finding.message) == ([level], True)


@pytest.mark.parametrize("served", [False, True])
def test_gangs_that_no_node_can_align_are_named(served: bool) -> None:
    (finding,) = technologies.numa(["team-a/x", "team-a/y"], served=served)
    assert finding.level is WARNING
    assert "2 gangs (team-a/x, team-a/y) request one NUMA node" in finding.message
    assert ("CustomResourceDefinition" in finding.message) is not served


@pytest.mark.parametrize(
    ("blockers", "expected"), [([], [OK]), (["watch: pods", "database: away"], [PROBLEM, PROBLEM])]
)
def test_each_blocker_of_readiness_is_a_problem(blockers: list[str], expected: list[Level]) -> None:
    assert levels(judge.readiness(blockers)) == expected


def build(version: str) -> Sample:
    return Sample("queuectl_build_info", {"version": version}, 1)


def leads(value: float) -> Sample:
    return Sample("queuectl_leader", {}, value)


def alarm(reason: str, pods: float) -> Sample:
    return Sample("queuectl_utilization_alarms", {"reason": reason}, pods)


def test_a_web_page_instead_of_metrics_is_an_unknown_version() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, text="{}" if request.url.path == "/readyz" else "<html> page")

    transport = httpx2.MockTransport(answer)
    with Client("http://127.0.0.1", transport=transport, retries=0) as client:
        findings, answers = examine(client)
    assert answers
    assert [(one.check, one.level) for one in findings][-1] == ("versions", Level.UNKNOWN)


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([build("1.0"), leads(1), alarm("no_match", 0)], [OK, OK]),
        ([build("0.9"), leads(1), alarm("no_match", 0)], [WARNING, OK]),
        ([leads(1), alarm("no_match", 0)], [UNKNOWN, OK]),
        ([build("1.0"), leads(1)], [OK, WARNING]),
        ([build("1.0"), leads(0)], [OK, UNKNOWN]),
        ([build("1.0"), leads(1), alarm("no_match", 3), alarm("x", 0)], [OK, WARNING]),
    ],
)
def test_metrics_have_the_version_and_the_state_of_gpu_measurement(
    samples: list[Sample], expected: list[Level]
) -> None:
    assert levels(of_metrics(samples, "1.0")) == expected


@pytest.mark.parametrize(("gangs", "level"), [(0, OK), (2, PROBLEM)])
def test_units_that_internal_errors_set_aside_are_a_problem(gangs: float, level: Level) -> None:
    samples = [
        Sample("queuectl_set_aside", {"boundary": boundary}, value)
        for boundary, value in (("gang", gangs), ("write", 0))
    ]
    [found] = [f for f in of_metrics([build("1.0"), *samples], "1.0") if f.check == "containment"]
    assert found.level is level
    assert ("gang 2" in found.message) is (level is PROBLEM)


@pytest.mark.parametrize(
    ("callers", "addresses", "warns"),
    [(7, 1, True), (3, 1, True), (2, 1, False), (7, 2, False), (0, 0, False)],
)
def test_callers_that_share_one_address_are_reported(
    callers: float, addresses: float, warns: bool
) -> None:
    samples = [
        build("1.0"),
        leads(1),
        Sample("queuectl_api_callers", {}, callers),
        Sample("queuectl_api_caller_addresses", {}, addresses),
    ]
    found = [one for one in of_metrics(samples, "1.0") if one.check == "callers"]
    assert [one.level for one in found] == ([WARNING] if warns else [])
    if warns:
        assert "QUEUECTL_TRUSTED_PROXIES" in str(found[0].fix)


@pytest.mark.parametrize("pods", [0, 3])
def test_the_trusted_sources_of_gpu_metrics_are_shown(pods: float) -> None:
    trust = Sample("queuectl_utilization_trust_info", {"trusts": "scrape jobs a, b"}, 1)
    found = of_metrics([build("1.0"), leads(1), alarm("untrusted", pods), trust], "1.0")
    assert found[-1].level is OK
    assert "scrape jobs a, b" in found[-1].message


@pytest.mark.parametrize(
    ("current", "known", "level"),
    [("0010", True, OK), ("0009", True, PROBLEM), (None, True, PROBLEM), ("0011", False, WARNING)],
)
def test_the_schema_must_have_the_revision_of_the_release(
    current: str | None, known: bool, level: Level
) -> None:
    assert levels(judge.schema("queuectl on db", current, "0010", migrated=known)) == [level]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([("a", "1.0", False), ("b", "1.0", False)], [Level.OK]),
        ([("a", "1.0", False), ("b", "0.9", False), ("c", "0.8", False)], [Level.WARNING] * 2),
        ([("a", "1.0", False), ("b", "0.9", True)], [Level.OK]),
        ([("a", "1.0", True)], [Level.WARNING]),
        ([], [Level.WARNING]),
    ],
)
def test_registered_replicas_should_be_of_this_release(
    found: list[tuple[str, str, bool]], expected: list[Level]
) -> None:
    assert levels(judge.replicas(found, "1.0")) == expected


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with serving(MemoryStore()) as address:
        yield address


def kubeconfig(folder: Path, address: str) -> str:
    config = folder / "config"
    config.write_text(json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": address}}],
        "users": [{"name": "u", "user": {"token": "x"}}],
    }))  # fmt: skip
    return str(config)


class Breaking(BaseHTTPRequestHandler):
    """An API server whose connections break after the request of its version."""

    def do_GET(self) -> None:
        if self.path == "/version":
            body = b'{"major": "1", "minor": "36"}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        self.close_connection = True

    do_POST = do_GET  # noqa: N815 - its name in the library

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def breaking() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Breaking) as cluster:
        thread = Thread(target=cluster.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{cluster.server_port}"
        cluster.shutdown()
        thread.join()


def test_a_broken_connection_is_not_a_problem_of_policies(
    server: str,
    breaking: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """A check that cannot be made is unknown, and its fix is not to apply deploy/ again."""
    monkeypatch.setenv("KUBECONFIG", kubeconfig(tmp_path, breaking))
    monkeypatch.setenv("QUEUECTL_SERVER", server)
    monkeypatch.setattr("sys.argv", ["queuectl", "doctor", "-o", "json"])
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    of_cluster = [(f["check"], f["level"]) for f in findings if f["check"] not in SERVERS]
    unknown = ["rights", *["policies"] * 3, "kinds", "leader", "nodes", "others", "kueue"]
    unknown += ["visibility"]
    assert of_cluster == [("cluster", "ok"), *((check, "unknown") for check in unknown)]


SERVERS = ("server", "versions", "containment", "metrics")


def test_it_reports_all_checks_and_fails_for_an_unreachable_cluster(
    server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBECONFIG", kubeconfig(tmp_path, "http://127.0.0.1:9"))
    monkeypatch.setenv("QUEUECTL_SERVER", server)
    monkeypatch.setattr("sys.argv", ["queuectl", "doctor", "-o", "json"])
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 1
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert [(one["check"], one["level"]) for one in findings] == [
        ("server", "ok"),
        ("versions", "ok"),
        ("containment", "ok"),
        ("metrics", "unknown"),
        ("cluster", "problem"),
    ]
    monkeypatch.setattr("sys.argv", ["queuectl", "doctor"])
    with pytest.raises(SystemExit):
        run()
    out = capsys.readouterr().out
    assert "PROBLEM  cluster     no answer:" in out
    assert "fix: check `kubectl version`" in out
    assert out.endswith("1 problem, 0 warnings\n")


CLEAN = Checked(1.0, 120, 500, 40)
VIOLATED = replace(
    CLEAN,
    violations=(
        InvariantViolation(Invariant.ONCE, "u1", "Job", "team-a", "train", "pods run twice"),
    ),
)


@pytest.mark.parametrize(
    ("checked", "level", "message"),
    [
        (CLEAN, "ok", "no invariant is violated; checked: 120 workloads, 500 pods, 40 nodes"),
        (VIOLATED, "problem", "Job team-a/train: Once: pods run twice"),
        (None, "unknown", "only the process that leads checks invariants: queuectl-1 leads"),
    ],
    ids=["clean", "violated", "a standby"],
)
def test_an_audit_shows_the_findings_of_the_leader_or_how_to_reach_it(
    checked: Checked | None,
    level: str,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("KUBECONFIG", kubeconfig(tmp_path, "http://127.0.0.1:9"))
    diagnoser = FixedDiagnoser()
    diagnoser.checked = checked
    with serving(MemoryStore(), diagnoser) as address:
        monkeypatch.setenv("QUEUECTL_SERVER", address)
        monkeypatch.setattr("sys.argv", ["queuectl", "doctor", "--audit", "-o", "json"])
        with pytest.raises(SystemExit):
            run()
    findings = json.loads(capsys.readouterr().out)["findings"]
    [found] = [one for one in findings if one["check"] == "audit"]
    assert found["level"] == level
    assert message in found["message"]


@pytest.mark.parametrize(
    ("series", "expected"),
    [
        ({}, []),
        ({"unknown": 0.0, "faulty": 0.0}, ["ok"]),
        ({"unknown": 1.0, "faulty": 0.0}, ["problem"]),
        ({"unknown": 0.0, "faulty": 2.0}, ["warning"]),
        ({"unknown": 1.0, "unconfirmed": 7.0}, ["problem", "warning"]),
        ({"unknown": 0.0, "waiting": 7.0}, ["ok"]),
    ],
    ids=str,
)
def test_objects_that_own_the_configuration_are_checked(
    series: dict[str, float], expected: list[str]
) -> None:
    samples = [
        Sample("queuectl_followed_kind_unknown", {"resource": "cohorts.kueue.x-k8s.io"}, value)
        if name == "unknown"
        else Sample("queuectl_followed_edits", {"status": name}, value)
        for name, value in series.items()
    ]
    found = [f for f in of_metrics([build("1.0"), *samples], "1.0") if f.check == "owner"]
    assert [one.level.value for one in found] == expected


def shadow_gauges(**gauges: float) -> list[Sample]:
    return [Sample(f"queuectl_shadow_{name}", {}, value) for name, value in gauges.items()]


def test_shadow_mode_is_judged_by_its_records_and_not_by_gpu_metrics() -> None:
    now = time.time()
    healthy = {
        "last_observation_timestamp_seconds": now - 30,
        "records_began_timestamp_seconds": now - 3 * 86400,
        "retention_seconds": 60 * 86400.0,
        "report_interval_seconds": 3600.0,
    }

    def found(**changed: float) -> list[tuple[Level, str]]:
        samples = [build("1.0"), *shadow_gauges(**{**healthy, **changed})]
        return [
            (one.level, one.message) for one in of_metrics(samples, "1.0") if one.check == "shadow"
        ]

    assert found(last_observation_timestamp_seconds=0.0) == [], "another mode"
    [records, report] = found(simulated_timestamp_seconds=now - 600)
    assert records == (
        OK,
        "the last observation is 30 s old; records of 3 d, which are kept for 60 d",
    )
    assert report == (OK, "the last simulated report is 10 min old")
    [_, report] = found(records_began_timestamp_seconds=now - 2400)
    assert report == (OK, "the first simulated report of this replica is due in 20 min")
    [(level, message), *_] = found(last_observation_timestamp_seconds=now - 7200)
    assert (level, message.startswith("no observation was recorded for 2 h")) == (PROBLEM, True)
    assert [level for level, _ in found(left_out=2.0)] == [OK, WARNING, OK]
    assert [level for level, _ in found(records_began_timestamp_seconds=0.0)] == [UNKNOWN]
    checks = {one.check for one in of_metrics([build("1.0"), *shadow_gauges(**healthy)], "1.0")}
    assert "metrics" not in checks


@pytest.mark.parametrize(("refused", "level"), [([], OK), (["/api/v1/pods"], PROBLEM)])
def test_lists_that_shadow_mode_cannot_read_are_named(refused: list[str], level: Level) -> None:
    [finding] = shadow.reading(refused)
    assert finding.level is level
    assert all(path in finding.message for path in refused)
