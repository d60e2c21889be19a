"""``queuectl doctor`` in a pod of queuectl: it needs no option, and names each fault of this replica with what to do."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import os
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from queuectl.api.app import create_app, create_health_app, create_metrics_app
from queuectl.api.server import Certificate, WebServer
from queuectl.cli.doctor import judge, pod
from queuectl.cli.doctor import server as serving
from queuectl.cli.doctor.findings import Finding, Level
from queuectl.cli.main import run
from queuectl.control.listen_address import ListenAddress
from queuectl.control.settings import Settings
from queuectl.db.engine import address_of
from queuectl.domain.records import LeaderRecord
from queuectl.objects.kinds import KINDS
from queuectl.telemetry.metrics import MetricsRecorder
from tests.api.support import FixedHealth
from tests.doubles.store import MemoryStore
from tests.support.tls import write_certificate

OK, WARNING, PROBLEM, UNKNOWN = Level.OK, Level.WARNING, Level.PROBLEM, Level.UNKNOWN
SECRET = "hunter2"
CLOSED = "127.0.0.1:9"
HOST = "queuectl.queuectl-system.svc"


@dataclass(frozen=True)
class Replica:
    """The ports of a replica, and what a test changes."""

    rest: WebServer
    metrics: WebServer
    health: WebServer
    verdict: FixedHealth
    certificate: Certificate

    def settings(self) -> dict[str, str]:
        """The environment that its Deployment sets."""
        return {
            "QUEUECTL_HOLDER": "queuectl-1",
            "QUEUECTL_NAMESPACE": "queuectl-system",
            "QUEUECTL_DATABASE_URL": f"postgresql://queuectl:{SECRET}@{CLOSED}/queuectl",
            "QUEUECTL_API_DATABASE_URL": f"postgresql://queuectl_api:{SECRET}@{CLOSED}/queuectl",
            "QUEUECTL_LISTEN": f"0.0.0.0:{self.rest.address.port}",
            "QUEUECTL_METRICS_LISTEN": f"0.0.0.0:{self.metrics.address.port}",
            "QUEUECTL_HEALTH_LISTEN": f"0.0.0.0:{self.health.address.port}",
            "QUEUECTL_TLS_CERT_FILE": str(self.certificate.chain),
            "QUEUECTL_TLS_KEY_FILE": str(self.certificate.key),
        }


@contextmanager
def running(certificate: Certificate) -> Iterator[Replica]:
    """The ports of a replica that answers with this certificate."""
    verdict, registry = FixedHealth(), MetricsRecorder().registry
    local = ListenAddress("127.0.0.1", 0)
    rest = WebServer(create_app(MemoryStore(), verdict, registry), local, certificate)
    servers = [
        rest,
        WebServer(create_metrics_app(registry), local),
        WebServer(create_health_app(verdict), local),
    ]

    async def serve() -> None:
        await asyncio.gather(*(each.run() for each in servers))

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="replica")
    thread.start()
    try:
        with capture_logs():
            yield Replica(rest, servers[1], servers[2], verdict, certificate)
    finally:
        for each in servers:
            each.stop()
        thread.join()


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    folder = tmp_path_factory.mktemp("tls")
    with running(write_certificate(folder, "queuectl", HOST)) as ports:
        yield ports


@pytest.fixture
def environment(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of the replica, without a test's own settings of queuectl."""
    for name in [name for name in os.environ if name.startswith("QUEUECTL_")]:
        monkeypatch.delenv(name)
    for name, text in replica.settings().items():
        monkeypatch.setenv(name, text)
    monkeypatch.setenv("QUEUECTL_SERVER", f"http://{CLOSED}")  # for the other commands in the pod
    return replica.settings()


def ports_of(settings: Settings) -> list[tuple[str, Level]]:
    """The checks of the ports with their levels; each fault has a fix."""
    findings = pod.examine(settings)
    for each in findings:
        assert each.level is OK or each.fix, each
    return [(each.check, each.level) for each in findings]


HEALTHY = [
    ("server", OK),
    ("rest", OK),
    ("rest", OK),
    ("versions", OK),
    ("containment", OK),
    ("metrics", UNKNOWN),  # it does not lead
]


@pytest.mark.usefixtures("environment")
def test_a_replica_is_examined_by_its_own_settings(replica: Replica) -> None:
    settings, findings = pod.own_settings()
    assert settings is not None
    assert [(each.check, each.level) for each in findings] == [("settings", OK)]
    assert ports_of(settings) == HEALTHY
    rest, certificate = (each for each in pod.examine(settings) if each.check == "rest")
    assert rest.message == f"{replica.rest.url} answers"
    assert f"the certificate for {HOST} is valid until " in certificate.message


@pytest.mark.parametrize(
    ("name", "text", "check", "says"),
    [
        ("QUEUECTL_HEALTH_LISTEN", CLOSED, "server", f"no answer from http://{CLOSED}/readyz"),
        ("QUEUECTL_LISTEN", CLOSED, "rest", f"no answer from https://{CLOSED}"),
        ("QUEUECTL_METRICS_LISTEN", CLOSED, "metrics", f"no metrics from http://{CLOSED}/metrics"),
        ("QUEUECTL_TLS_CERT_FILE", "/nowhere/tls.crt", "rest", "/nowhere/tls.crt holds no cert"),
        ("QUEUECTL_TLS_CERT_FILE", "/dev/null", "rest", "/dev/null holds no certificate"),
    ],
)
@pytest.mark.usefixtures("environment")
def test_a_port_that_does_not_answer_is_named(
    name: str, text: str, check: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, text)
    settings, _ = pod.own_settings()
    assert settings is not None
    faults = [each for each in pod.examine(settings) if each.level is PROBLEM]
    assert [each.check for each in faults] == [check]
    assert says in faults[0].message
    assert faults[0].fix


@pytest.mark.parametrize(
    ("blockers", "expected"),
    [
        (["database: no answer", "watch: pods"], ["not ready: database: no answer", "watch: pods"]),
        (["x" * 5000], ["not ready: x"]),
    ],
)
@pytest.mark.usefixtures("environment")
def test_each_blocker_of_the_replica_is_named(
    blockers: list[str], expected: list[str], replica: Replica
) -> None:
    settings, _ = pod.own_settings()
    assert settings is not None
    replica.verdict.blockers = blockers
    try:
        found = [each for each in pod.examine(settings) if each.check == "server"]
    finally:
        replica.verdict.blockers = []
    assert [each.level for each in found] == [PROBLEM] * len(blockers)
    assert all(part in each.message for part, each in zip(expected, found, strict=True))


@pytest.mark.parametrize(
    ("remaining", "level", "says"),
    [
        (dt.timedelta(days=90), OK, "is valid until"),
        (dt.timedelta(minutes=5), WARNING, "is valid until"),
        (dt.timedelta(minutes=-5), PROBLEM, "so clients refuse the REST API"),
    ],
)
@pytest.mark.usefixtures("environment")
def test_a_certificate_that_ends_is_reported_and_the_api_still_examined(
    remaining: dt.timedelta,
    level: Level,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with running(write_certificate(tmp_path, "queuectl", HOST, remaining)) as ports:
        for name, text in ports.settings().items():
            monkeypatch.setenv(name, text)
        settings, _ = pod.own_settings()
        assert settings is not None
        answers, certificate = (each for each in pod.examine(settings) if each.check == "rest")
    assert answers.level is OK
    assert certificate.level is level
    assert says in certificate.message
    assert bool(certificate.fix) is (level is not OK)


@pytest.mark.usefixtures("environment")
def test_a_renewed_file_that_the_server_does_not_use_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write_certificate(tmp_path, "renewed", HOST)
    monkeypatch.setenv("QUEUECTL_TLS_CERT_FILE", str(other.chain))
    settings, _ = pod.own_settings()
    assert settings is not None
    [found] = [each for each in pod.examine(settings) if each.check == "rest"]
    assert found.level is PROBLEM
    assert f"uses another certificate than {other.chain}" in found.message


@pytest.mark.parametrize(
    ("status", "level"), [(200, OK), (401, OK), (503, PROBLEM), (404, PROBLEM)]
)
def test_the_answer_of_the_api_to_a_request_without_credentials(status: int, level: Level) -> None:
    [found] = judge.rest_api("https://127.0.0.1:8443", status)
    assert (found.level, bool(found.fix)) == (level, level is not OK)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("QUEUECTL_LISTN", "x", "QUEUECTL_LISTN: unknown variable; did you mean QUEUECTL_LISTEN"),
        ("QUEUECTL_IN_FLIGHT", "many", "QUEUECTL_IN_FLIGHT: must be an integer"),
        ("QUEUECTL_SOLVER__WINDOW", "0", "QUEUECTL_SOLVER__WINDOW: must be greater"),
        ("QUEUECTL_SOLVER", "{", "QUEUECTL_SOLVER: '{' is not JSON"),
        ("QUEUECTL_DATABASE_URL", None, "QUEUECTL_DATABASE_URL is not set"),
    ],
)
@pytest.mark.usefixtures("environment")
def test_a_wrong_or_missing_setting_is_named(
    name: str, text: str | None, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, text) if text is not None else monkeypatch.delenv(name)
    settings, [found] = pod.own_settings()
    assert (settings is None) is (text is not None)
    assert found.level is PROBLEM
    assert says in found.message
    assert found.fix


@pytest.mark.parametrize("content", ["jobKinds: [1]", "{", None])
@pytest.mark.usefixtures("environment")
def test_a_wrong_declaration_of_kinds_is_named(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "job-kinds.yaml"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv("QUEUECTL_KINDS_FILE", str(file))
    kinds, [found] = pod.own_kinds(Settings())
    assert (kinds, found.check, found.level) == (KINDS, "kinds", PROBLEM)
    assert str(file) in found.message


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (LeaderRecord("queuectl-1", 1, 100.0, 15.0, "1"), "queuectl-1 is the leader: this replica"),
        (
            LeaderRecord("queuectl-2", 1, 100.0, 15.0, "1"),
            "queuectl-2 is the leader: this replica, queuectl-1, is a standby",
        ),
        (LeaderRecord("queuectl-2", 1, 10.0, 15.0, "1"), "no leader: the lease of the last leader"),
        (None, "there has been no leader yet"),
    ],
)
def test_the_leader_is_named_and_whether_it_is_this_replica(
    record: LeaderRecord | None, message: str
) -> None:
    [found] = judge.leader(record, 110.0, "queuectl-1")
    assert message in found.message


# ---- The database


@pytest.mark.parametrize(
    ("url", "address"),
    [
        (f"postgresql://me:{SECRET}@db.example:5433/queue", "queue on db.example:5433 as me"),
        (f"postgresql://db.example/?password={SECRET}", "the default database on db.example"),
        (f"postgresql://me:{SECRET}@[::1]/queue", "queue on ::1 as me"),
        ("postgresql:///queue?host=/run/pg&user=me", "queue on /run/pg"),
        ("postgresql://me@/queue?host=a:1&host=b:2", "queue on a:1,b:2 as me"),
        ("postgresql:///queue", "queue on a local socket"),
    ],
)
def test_the_address_of_a_database_has_no_password(url: str, address: str) -> None:
    assert address_of(url) == address


@contextmanager
def refusing(code: str, message: str) -> Iterator[str]:
    """The address of a Postgres server that refuses each login with this SQLSTATE."""
    fields = f"SFATAL\0VFATAL\0C{code}\0M{message}\0\0".encode()
    answer = b"E" + struct.pack("!I", len(fields) + 4) + fields

    def serve(listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client:
                if client.recv(8)[4:] == struct.pack("!I", 80877103):  # a request for TLS
                    client.sendall(b"N")
                    client.recv(8)
                client.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), name="postgres")
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize(
    ("code", "message", "fix"),
    [
        ("28P01", 'password authentication failed for user "queuectl"', "the password of"),
        ("28000", "no pg_hba.conf entry", "the role and the password of"),
        ("57P03", "the database system is starting up", "start the database, or correct"),
        ("53300", "too many connections", "start the database, or correct"),
        ("3D000", 'database "queuectl" does not exist', "docs/how-to/database.md"),
    ],
)
def test_a_refused_login_states_why_and_what_to_correct(code: str, message: str, fix: str) -> None:
    examined: dict[str, Callable[[str], Coroutine[Any, Any, list[Finding]]]] = {
        "QUEUECTL_DATABASE_URL": serving.database,
        "QUEUECTL_API_DATABASE_URL": serving.database_of_api,
    }
    with refusing(code, message) as address:
        for variable, examine in examined.items():
            url = f"postgresql://queuectl:{SECRET}@{address}/queuectl"
            [found] = asyncio.run(examine(url))
            assert found.level is PROBLEM
            assert f"queuectl on {address} as queuectl: " in found.message
            assert message in found.message
            assert fix in found.fix
            assert variable in found.fix
            assert SECRET not in found.message + found.fix


@pytest.mark.parametrize("url", ["mysql://me@db/queue", f"://{SECRET}", ""])
def test_a_url_of_no_postgres_is_a_problem_without_its_text(url: str) -> None:
    for examine in (serving.database, serving.database_of_api):
        [found] = asyncio.run(examine(url))
        assert found.level is PROBLEM
        assert SECRET not in found.message


# ---- The command


def kubeconfig(folder: Path) -> Path:
    """Of an API server that does not answer."""
    file = folder / "config"
    file.write_text(json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": f"http://{CLOSED}"}}],
        "users": [{"name": "u", "user": {"token": "x"}}],
    }))  # fmt: skip
    return file


@pytest.mark.usefixtures("environment")
def test_the_command_needs_no_option_while_database_and_api_server_are_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QUEUECTL_KUBECONFIG", str(kubeconfig(tmp_path)))
    monkeypatch.setattr("sys.argv", ["queuectl", "doctor", "-o", "json"])
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 1
    printed = capsys.readouterr().out
    assert SECRET not in printed
    findings = json.loads(printed)["findings"]
    assert [(one["check"], one["level"]) for one in findings] == [
        ("settings", "ok"),
        *((check, str(level)) for check, level in HEALTHY),
        ("database", "problem"),
        ("database", "problem"),
        ("cluster", "problem"),
        ("further", "unknown"),
    ]
    down = [one["message"] for one in findings if one["check"] == "database"]
    assert f"queuectl on {CLOSED} as queuectl: reading the schema: " in down[0]
    assert f"queuectl on {CLOSED} as queuectl_api: " in down[1]


@pytest.mark.usefixtures("environment")
def test_wrong_settings_leave_the_other_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QUEUECTL_IN_FLIGHT", "many")
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path)))
    monkeypatch.setattr("sys.argv", ["queuectl", "doctor", "--audit"])
    with pytest.raises(SystemExit):
        run()
    printed = capsys.readouterr().out
    assert "PROBLEM  settings    QUEUECTL_IN_FLIGHT: must be an integer" in printed
    assert "PROBLEM  database    queuectl on 127.0.0.1:9" in printed
    assert "PROBLEM  cluster     no answer:" in printed
    assert "unknown  audit       not checked in the pod" in printed


@pytest.mark.usefixtures("environment")
def test_a_server_that_is_named_is_examined_instead_of_the_pod(
    replica: Replica, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["queuectl", "doctor", "--server", f"http://{CLOSED}"])
    with pytest.raises(SystemExit):
        run()
    assert (
        f"PROBLEM  server      no answer from http://{CLOSED} (Connection refused): give the"
        in capsys.readouterr().out
    )
