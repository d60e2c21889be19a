"""This replica of queuectl, examined in its own pod: by its settings and its ports, without credentials for its REST API."""

from __future__ import annotations

import json
import os
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from queuectl.cli.doctor import judge
from queuectl.cli.doctor import server as serving
from queuectl.cli.doctor.findings import Finding, Level
from queuectl.client.tls import lenient
from queuectl.distribution import version
from queuectl.domain.errors import BadInput
from queuectl.objects.kinds import KINDS, JobKinds

if TYPE_CHECKING:
    from queuectl.control.listen_address import ListenAddress
    from queuectl.control.settings import Settings

HOLDER: Final = "QUEUECTL_HOLDER"  # which the Deployment sets
_SECONDS: Final = 10.0  # for one answer
_NO_CHECK_TIME: Final = 0x200000  # X509_V_FLAG_NO_CHECK_TIME of OpenSSL, which Python does not name
_CHART: Final = "correct the value `settings` of the chart: docs/how-to/operate.md#change-a-setting"
_LOG: Final = "read the log of this pod: docs/how-to/on-call.md#logs"


@dataclass(frozen=True, slots=True)
class Response:
    """An answer of a port. ``certificate``: of its server, as ``ssl.SSLSocket.getpeercert``; empty without TLS."""

    status: int
    body: bytes
    certificate: Mapping[str, Any]


def inside() -> bool:
    """Whether this process runs in a replica of the Deployment, or with its environment."""
    return HOLDER in os.environ


def own_settings() -> tuple[Settings | None, list[Finding]]:
    """The settings of the replica, None if they are wrong, and the findings on them."""
    from queuectl.control.settings import InvalidSettings, read_settings

    try:
        settings = read_settings()
    except InvalidSettings as error:
        return None, [Finding("settings", Level.PROBLEM, each, _CHART) for each in error.sentences]
    if settings.database_url is None:
        message = "QUEUECTL_DATABASE_URL is not set, so the state is lost when this process ends"
        fix = "set it from the Secret of the database: docs/how-to/install.md"
        return settings, [Finding("settings", Level.PROBLEM, message, fix)]
    return settings, [Finding("settings", Level.OK, f"valid; this replica is {settings.holder}")]


def own_kinds(settings: Settings) -> tuple[JobKinds, list[Finding]]:
    """The job kinds of the replica, and the error of its declaration of further ones."""
    from queuectl.control.settings import job_kinds

    try:
        return job_kinds(settings), []
    except BadInput as error:
        return KINDS, judge.kinds(0, [str(error)])


def examine(settings: Settings) -> list[Finding]:
    """Findings on the ports of the replica: health, REST API and metrics."""
    from queuectl.control.listen_address import ListenAddress

    health = ListenAddress.parse(settings.health_listen).local
    metrics = ListenAddress.parse(settings.metrics_listen).local
    rest = ListenAddress.parse(settings.listen).local
    leader = f"kubectl -n {settings.namespace} exec POD-OF-THE-LEADER -- queuectl doctor"
    return [
        *_of_health(health),
        *_of_rest(rest, settings.tls_cert_file),
        *_of_metrics(metrics, f"ask the leader: {leader}"),
    ]


def left_out(*, audit: bool) -> list[Finding]:
    """The checks for which the account of the pod lacks rights. ``audit``: the invariants were asked for."""
    message = (
        "not checked in the pod: objects of deploy/, labels of ResourceFlavors, Reservations, MIG, NUMA nodes, "
        "other gang schedulers"
    )
    fix = "for these, run queuectl doctor on your machine, with your own rights: docs/reference/cli.md#connection"
    rights = "not checked in the pod: it needs the right to get invariants of queuectl.dev"
    own = "run queuectl doctor --audit on your machine: docs/reference/cli.md#connection"
    audits = [Finding("audit", Level.UNKNOWN, rights, own)] if audit else []
    return [*audits, Finding("further", Level.UNKNOWN, message, fix)]


def _of_health(address: ListenAddress) -> list[Finding]:
    try:
        response = _get(address, "/readyz")
    except (OSError, HTTPException) as error:
        message = f"no answer from http://{address}/readyz ({error})"
        return [Finding("server", Level.PROBLEM, message, _LOG)]
    return judge.readiness(_blockers(response))


def _blockers(response: Response) -> list[str]:
    if response.status == HTTPStatus.OK:
        return []
    with suppress(ValueError, TypeError, KeyError):
        return [str(each) for each in json.loads(response.body)["blockers"]]
    return [f"/readyz answers {response.status}"]


def _of_rest(address: ListenAddress, chain: Path | None) -> list[Finding]:
    url = f"{'https' if chain else 'http'}://{address}"
    try:
        tls = _only(chain) if chain else None
    except OSError as error:
        message = f"{chain} holds no certificate ({error.strerror or error})"
        fix = "correct the Secret of the certificate: docs/how-to/install.md"
        return [Finding("rest", Level.PROBLEM, message, fix)]
    try:
        response = _get(address, "/healthz", tls)
    except ssl.SSLCertVerificationError as error:
        message = f"{url} uses another certificate than {chain} ({error.verify_message})"
        fix = "queuectl reads a renewed file within ten seconds; then restart it"
        return [Finding("rest", Level.PROBLEM, message, fix)]
    except (OSError, HTTPException) as error:
        return [Finding("rest", Level.PROBLEM, f"no answer from {url} ({error})", _LOG)]
    return judge.rest_api(url, response.status) + _of_certificate(response.certificate)


def _of_certificate(certificate: Mapping[str, Any]) -> list[Finding]:
    if not certificate:
        return []
    names = [name for _, name in certificate.get("subjectAltName", ())]
    begins, ends = (
        float(ssl.cert_time_to_seconds(certificate[each])) for each in ("notBefore", "notAfter")
    )
    return judge.certificate(names, begins, ends, time.time())


def _only(chain: Path) -> ssl.SSLContext:
    """Trust in the certificates of this file alone, for any host and also expired: what they state is judged apart."""
    tls = lenient(ssl.create_default_context(cafile=chain))
    tls.check_hostname = False
    tls.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    tls.verify_flags |= ssl.VerifyFlags(_NO_CHECK_TIME)
    return tls


def _of_metrics(address: ListenAddress, ask_leader: str) -> list[Finding]:
    try:
        response = _get(address, "/metrics")
        samples = serving.samples_of(response.body.decode())
    except (OSError, HTTPException, ValueError) as error:
        message = f"no metrics from http://{address}/metrics ({error})"
        return [Finding("metrics", Level.PROBLEM, message, _LOG)]
    return serving.of_metrics(samples, version(), ask_leader)


def _get(address: ListenAddress, path: str, tls: ssl.SSLContext | None = None) -> Response:
    """The answer to a request without credentials. Raises OSError or HTTPException."""
    if tls is None:
        connection = HTTPConnection(address.host, address.port, timeout=_SECONDS)
    else:
        connection = HTTPSConnection(address.host, address.port, timeout=_SECONDS, context=tls)
    try:
        connection.request("GET", path)
        secure = connection.sock
        peer = secure.getpeercert() if isinstance(secure, ssl.SSLSocket) else None
        answer = connection.getresponse()
        return Response(answer.status, answer.read(), peer or {})
    finally:
        connection.close()
