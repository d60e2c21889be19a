"""The webhook without an API server: mutations, answers, the configuration and the renewal of certificates."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import httpx2
import msgspec
import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from prometheus_client import CollectorRegistry
from starlette.testclient import TestClient

from queuectl.api.server import Certificate, ListenAddress
from queuectl.cel.expression import EvaluationError
from queuectl.cluster.apply import manifests, older_manifests
from queuectl.cluster.client import Api, Method
from queuectl.cluster.connection import Connection
from queuectl.cluster.writes import BINDING, CONFIGURATION, NAME, PATH, POLICY
from queuectl.domain.containment import Containment
from queuectl.domain.errors import BadInput, ClusterUnavailable, ObjectGone
from queuectl.objects import keys
from queuectl.objects.kinds import KINDS
from queuectl.webhook.app import LARGEST, WebhookSettings, application, serve
from queuectl.webhook.certificates import (
    MOST_TRUSTED,
    RENEWED,
    SETTLED,
    VALID,
    Certificates,
    advance,
    issue,
)
from queuectl.webhook.keeper import TASK, CertificateKeeper, from_data, to_data
from queuectl.webhook.mutations import Mutation, expression, mutations, read_mutations
from tests.support.jobs import job_of

DEPLOYED = manifests()
KNOWN = mutations(DEPLOYED)
NOW = dt.datetime(2026, 11, 23, tzinfo=dt.UTC)
NAMES = ["queuectl-webhook-0.queuectl-system.svc", "127.0.0.1"]
JOB: dict[str, Any] = {
    "metadata": {"name": "a", "labels": {keys.QUEUE_LABEL: "main"}},
    "spec": {"template": {"spec": {"containers": [{"name": "main"}]}}},
}


# ---- mutations


def test_each_mutating_policy_can_be_evaluated() -> None:
    of_pods = ("pods", "labeled-pods", "statefulsets", "deployments", "leaderworkersets")
    of_all = ("queue-labels", "submitters", "submitters-default")
    of_kinds = [kind.plural for kind in KINDS.values()]
    of_children = ["trainjobs-jobsets"]
    named = (*of_pods, *of_all, *of_kinds, *of_children)
    assert set(KNOWN) == {f"queuectl-{plural}" for plural in named}


def test_the_policies_of_a_file_are_read_beside_the_built_in_ones(tmp_path: Path) -> None:
    """A copy of the policy for PyTorchJobs, as the chart writes one for a declared kind."""
    [policy] = [
        one
        for one in DEPLOYED
        if one["metadata"]["name"] == "queuectl-pytorchjobs" and one["kind"] == POLICY
    ]
    own = {**policy, "metadata": {"name": "queuectl-gangruns"}}
    file = tmp_path / "policies.yaml"
    file.write_text(f"---\n{yaml.safe_dump(own)}")
    known = read_mutations(file)
    assert list(known) == ["queuectl-gangruns"]
    document = job_of("PyTorchJob", "a", pods=2)
    asked = {"userInfo": {"username": "alice"}, "operation": "CREATE"}
    patch = known["queuectl-gangruns"].patch(document, asked)
    assert patch == KNOWN["queuectl-pytorchjobs"].patch(document, asked) != []


def test_a_file_of_policies_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"absent: No such file"):
        read_mutations(tmp_path / "absent")
    wrong = tmp_path / "wrong"
    wrong.write_text("a: [")
    with pytest.raises(BadInput, match="wrong"):
        read_mutations(wrong)


def test_a_policy_with_a_part_that_is_not_supported_is_refused() -> None:
    [policy, *_] = [one for one in DEPLOYED if one["kind"] == "MutatingAdmissionPolicy"]
    conditions = {**policy, "spec": {**policy["spec"], "paramKind": {}}}
    twice = {**policy, "spec": {**policy["spec"], "mutations": policy["spec"]["mutations"] * 2}}
    for document in (conditions, twice):
        with pytest.raises(BadInput, match="queuectl-jobs"):
            Mutation(document)


def test_an_expression_that_is_not_valid_is_refused() -> None:
    with pytest.raises(BadInput, match="object"):
        expression("object +")


def test_a_missing_field_is_an_error_and_an_optional_one_is_not() -> None:
    data: dict[str, Any] = {"object": {}, "request": {}, "variables": {}}
    with pytest.raises(EvaluationError, match="spec"):
        expression("object.spec").evaluate(data)
    assert expression("object.?spec.orValue('none')").evaluate(data) == "none"


def test_a_key_is_escaped_as_part_of_a_pointer() -> None:
    data: dict[str, Any] = {"object": {}, "request": {}, "variables": {}}
    assert expression("jsonpatch.escapeKey('a/b~c')").evaluate(data) == "a~1b~0c"


# ---- answers


def review(document: Any) -> bytes:
    request = {
        "uid": "7",
        "operation": "CREATE",
        "userInfo": {"username": "alice"},
        "object": document,
    }
    return msgspec.json.encode({"request": request})


def test_the_answer_has_the_patch_of_the_policy() -> None:
    with TestClient(application(KNOWN, CollectorRegistry())) as client:
        response = client.post("/mutate/queuectl-jobs", content=review(JOB))
    said = response.json()["response"]
    patch = msgspec.json.decode(base64.b64decode(said["patch"]))
    assert (said["uid"], said["allowed"], said["patchType"]) == ("7", True, "JSONPatch")
    assert {"op": "add", "path": "/spec/suspend", "value": True} in patch
    assert [one["value"] for one in patch if "submitted-by" in one["path"]] == ["alice"]


@pytest.mark.parametrize(("kind", "gated"), [("ReplicaSet", True), ("Job", False)])
def test_a_pod_with_a_queue_label_is_gated_unless_it_is_of_a_job(kind: str, gated: bool) -> None:
    owner = {"kind": kind, "name": "a", "uid": "u", "controller": True}
    metadata = {**JOB["metadata"], "ownerReferences": [owner]}
    pod = {"metadata": metadata, "spec": {"priorityClassName": "urgent", "priority": 1000}}
    with TestClient(application(KNOWN, CollectorRegistry())) as client:
        response = client.post("/mutate/queuectl-pods", content=review(pod))
    said = response.json()["response"]
    patch = msgspec.json.decode(base64.b64decode(said.get("patch", "") or b"W10="))
    written = {one["path"]: one["value"] for one in patch}
    if not gated:
        assert written == {}
        return
    assert written["/spec/schedulingGates"] == [{"name": keys.GATE}]
    assert (written["/spec/priority"], written["/spec/preemptionPolicy"]) == (
        keys.POD_PRIORITY,
        "Never",
    )
    assert isinstance(written["/spec/priority"], int), "the API server accepts no 0.0"


def test_an_object_without_a_value_is_refused_with_the_reason() -> None:
    with TestClient(application(KNOWN, CollectorRegistry())) as client:
        response = client.post("/mutate/queuectl-pytorchjobs", content=review({"spec": {}}))
    said = response.json()["response"]
    assert said["allowed"] is False
    assert "policy queuectl-pytorchjobs" in said["status"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/mutate/queuectl-jobs", b"{}", 400),
        ("/mutate/queuectl-jobs", b"no JSON", 400),
        (
            "/mutate/queuectl-jobs",
            review({"x": "@"}).replace(b'"@"', b"[" * 2000 + b"]" * 2000),
            400,
        ),
        ("/mutate/queuectl-jobs", review(None), 400),
        ("/mutate/queuectl-jobs", b" " * (LARGEST + 1), 413),
        ("/mutate/other", review(JOB), 404),
    ],
)
def test_other_requests_are_refused(path: str, body: bytes, status: int) -> None:
    with TestClient(application(KNOWN, CollectorRegistry())) as client:
        assert client.post(path, content=body).status_code == status


# ---- the configuration


def named(documents: list[Any], kind: str) -> dict[str, Any]:
    return {one["metadata"]["name"]: one for one in documents if one["kind"] == kind}


WEBHOOKS = {
    one["name"].removesuffix(".queuectl.dev"): one
    for one in named(older_manifests(), "MutatingWebhookConfiguration")[CONFIGURATION]["webhooks"]
}


def test_the_configuration_has_a_webhook_of_each_replica_for_each_binding() -> None:
    bindings, policies = named(DEPLOYED, BINDING), named(DEPLOYED, POLICY)
    assert list(WEBHOOKS) == [f"{name}-{number}" for number in (0, 1) for name in bindings]
    for name, webhook in WEBHOOKS.items():
        bound, _, number = name.rpartition("-")
        binding = bindings[bound]["spec"]
        policy = policies[binding["policyName"]]["spec"]
        selected = {key: webhook[key] for key in webhook if key.endswith("Selector")}
        assert selected == binding["matchResources"]
        assert webhook["rules"] == policy["matchConstraints"]["resourceRules"]
        assert webhook["reinvocationPolicy"] == policy["reinvocationPolicy"]
        called = webhook["clientConfig"]["service"]
        assert (called["name"], called["path"]) == (
            f"{NAME}-{number}",
            PATH + binding["policyName"],
        )


def test_the_last_replica_fails_closed_and_is_called_for_unchanged_jobs_only() -> None:
    for name, webhook in WEBHOOKS.items():
        last = name.endswith("-1")
        assert webhook["failurePolicy"] == ("Fail" if last else "Ignore")
        conditions = {one["name"] for one in webhook.get("matchConditions", ())}
        assert ("not-changed-by-another-replica" in conditions) is last
        assert ("not-for-a-queued-job" in conditions) is name.startswith(
            (
                "queuectl-jobs-",
                "queuectl-jobsets-",
                "queuectl-pytorchjobs-",
                "queuectl-rayclusters-",
            )
        )


def test_the_account_of_the_webhook_and_the_right_to_the_status_are_only_in_the_older_set() -> None:
    older = older_manifests()

    names = {one["metadata"]["name"] for one in older if "Role" in one["kind"]}
    assert names - {one["metadata"]["name"] for one in DEPLOYED} == {
        "queuectl-webhook",
        "queuectl-job-status",
    }
    assert not [one for one in older if one["kind"].startswith(POLICY)]


# ---- certificates


def times(found: Certificates) -> tuple[int, int | None, int]:
    """The days at which the served certificate and its successor end, and the number of trusted ones."""
    ends = [
        (pair.read.not_valid_after_utc - NOW).days if pair is not None else None
        for pair in (found.served, found.successor)
    ]
    assert ends[0] is not None
    return ends[0], ends[1], len(found.trusted)


def test_a_certificate_is_renewed_in_two_steps_and_stays_trusted_until_it_ends() -> None:
    days = VALID.days
    first = advance(Certificates(), NAMES, NOW)
    assert times(first) == (days, None, 1)
    assert advance(first, NAMES, NOW + VALID - RENEWED - dt.timedelta(days=1)) == first

    due = NOW + VALID - RENEWED
    second = advance(first, NAMES, due)
    assert times(second) == (days, 2 * days - RENEWED.days, 2)
    assert second.served == first.served, "no API server trusts the successor yet"
    assert advance(second, NAMES, due + SETTLED - dt.timedelta(minutes=1)) == second

    third = advance(second, NAMES, due + SETTLED)
    assert (third.served, third.successor) == (second.successor, None)
    assert third.trusted == second.trusted, "a replica can still serve the first one"
    assert len(advance(third, NAMES, NOW + VALID).trusted) == 1


def test_a_certificate_that_ended_or_lacks_a_name_is_replaced_at_once() -> None:
    first = advance(Certificates(), NAMES, NOW)
    for found in (
        advance(first, NAMES, NOW + VALID),
        advance(first, [*NAMES, "other"], NOW),
    ):
        assert found.served != first.served
        assert found.served is not None
        assert found.served.certificate in found.trusted
    assert advance(first, NAMES[:1], NOW) == first


@pytest.mark.parametrize("name", ["FD00::1", "fd00:0:0:0:0:0:0:1", "10.0.0.1", "webhook.example"])
def test_a_name_is_compared_as_the_certificate_has_it(name: str) -> None:
    first = advance(Certificates(), [*NAMES, name], NOW)
    assert advance(first, [*NAMES, name], NOW + dt.timedelta(minutes=1)) == first


def test_replicas_with_different_names_fill_no_secret() -> None:
    kept = Certificates()
    for number in range(3 * MOST_TRUSTED):
        kept = advance(kept, [f"replica-{number % 2}"], NOW + dt.timedelta(minutes=number))
        assert kept.served is not None
        assert kept.served.certificate in kept.trusted
    assert len(kept.trusted) == MOST_TRUSTED


def _broken(data: dict[str, str], **changes: bytes | str) -> dict[str, str]:
    """``changes``: by key with _ for the dot; text is written as it is."""
    encoded = {
        key.replace("_", "."): v if isinstance(v, str) else base64.b64encode(v).decode()
        for key, v in changes.items()
    }
    return {**data, **encoded}


OTHER = issue(["other"], NOW)
NO_NAMES = (
    x509.CertificateBuilder()
    .subject_name(x509.Name([]))
    .issuer_name(x509.Name([]))
    .public_key(load_pem_private_key(OTHER.key, None).public_key())  # type: ignore[arg-type]
    .serial_number(1)
    .not_valid_before(NOW)
    .not_valid_after(NOW + VALID)
    .sign(load_pem_private_key(OTHER.key, None), hashes.SHA256())  # type: ignore[arg-type]
    .public_bytes(Encoding.PEM)
)


@pytest.mark.parametrize(
    "changes",
    [
        {"tls_crt": "&&&"},
        {"tls_crt": b""},
        {"tls_crt": b"no PEM"},
        {"tls_crt": b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"},
        {"tls_key": b"no PEM"},
        {"tls_key": OTHER.key},
        {"tls_crt": NO_NAMES, "tls_key": OTHER.key},
        {"ca_crt": b"no PEM"},
        {"ca_crt": b"x-----END CERTIFICATE-----\n", "next_crt": b"y", "next_key": b"z"},
        {"next_crt": "&", "next_key": "A"},
    ],
)
def test_content_of_the_secret_that_is_not_usable_is_replaced(
    changes: dict[str, bytes | str],
) -> None:
    first = advance(Certificates(), NAMES, NOW)
    data = {key: text for key, text in to_data(first).items() if text is not None}
    found = from_data(_broken(data, **changes))
    kept = advance(found, NAMES, NOW)
    assert kept.served is not None
    assert kept.served.usable
    assert kept.served.certificate in kept.trusted
    if not {"tls_crt", "tls_key"} & set(changes):
        assert kept.served == first.served
    if "ca_crt" not in changes:
        assert set(first.trusted) <= set(kept.trusted), (
            "replicas that serve the last one are trusted"
        )
    stored = {key: text for key, text in to_data(kept).items() if text is not None}
    assert advance(from_data(stored), NAMES, NOW) == kept


def test_the_secret_keeps_the_certificates() -> None:
    first = advance(Certificates(), NAMES, NOW)
    second = advance(first, NAMES, NOW + VALID - RENEWED)
    for kept in (first, second):
        data = {key: value for key, value in to_data(kept).items() if value is not None}
        assert from_data(data) == kept
    assert from_data({}) == Certificates()


def test_a_client_that_trusts_the_bundle_accepts_the_served_certificate(tmp_path: Path) -> None:
    pair = issue(NAMES, dt.datetime.now(dt.UTC))
    files = tmp_path / "tls.crt", tmp_path / "tls.key"
    for file, content in zip(files, (pair.certificate, pair.key), strict=True):
        file.write_bytes(content)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*files)
    client = ssl.create_default_context(cadata=pair.certificate.decode())
    sent, received = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(received, sent, server_hostname=NAMES[0])
    other = server.wrap_bio(sent, received, server_side=True)
    for side in (one, other, one, other):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    assert one.getpeercert()


# ---- the keeper, against a double of the API server


class Cluster(Api):
    """The Secret and the configuration of the webhook. ``answers``: what the next requests get instead, or raise."""

    def __init__(self, data: object = None) -> None:
        metadata = {"resourceVersion": "1"}
        self.secret: dict[str, Any] = {"metadata": metadata, "data": data}
        self.configuration: dict[str, Any] = {
            "metadata": metadata,
            "webhooks": [{"name": "jobs", "clientConfig": {}}],
        }
        self.answers: list[bytes | Exception] = []

    async def request(self, method: Method, path: str, **more: Any) -> bytes:
        await asyncio.sleep(0)
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        secret = "/secrets/" in path
        if method == "PATCH" and secret:
            kept = self.secret["data"] if isinstance(self.secret["data"], dict) else {}
            self.secret["data"] = {**kept, **more["body"]["data"]}
        elif method == "PATCH":
            for change in more["body"][1:]:
                self.configuration["webhooks"][0]["clientConfig"]["caBundle"] = change["value"]
        return msgspec.json.encode(self.secret if secret else self.configuration)

    async def close(self) -> None:
        """Do nothing: this double has no connection."""

    @property
    def trusts(self) -> bytes:
        """The certificates in the configuration."""
        return base64.b64decode(self.configuration["webhooks"][0]["clientConfig"]["caBundle"])


def keeper_of(
    cluster: Cluster, folder: Path, containment: Containment | None = None
) -> CertificateKeeper:
    return CertificateKeeper(
        cluster, "queuectl-system", NAMES, folder, containment or Containment(time.time)
    )


def damaged(certificate: bytes) -> bytes:
    """A certificate of a version that does not exist."""
    der = x509.load_pem_x509_certificate(certificate).public_bytes(Encoding.DER)
    body = base64.encodebytes(der.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x07", 1))
    return b"-----BEGIN CERTIFICATE-----\n" + body + b"-----END CERTIFICATE-----\n"


def nested(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = [value]
    return value


HOSTILE: dict[str, Any] = {
    "no data": None,
    "a list": ["tls.crt"],
    "a text": "tls.crt",
    "numbers": {"tls.crt": 5, "tls.key": 1.5, "ca.crt": True, "next.crt": None},
    "objects": {"tls.crt": {"a": "b"}, "ca.crt": [["x"]]},
    "deep values": {"tls.crt": nested(200), "ca.crt": nested(200)},
    "text beyond base64": {"tls.crt": "\u2028", "ca.crt": "=", "tls.key": "\x00"},
    "no PEM": _broken({}, tls_crt=b"no PEM", tls_key=b"no PEM", ca_crt=b"no PEM"),
    "another version": _broken(
        {}, tls_crt=damaged(OTHER.certificate), tls_key=OTHER.key, ca_crt=damaged(OTHER.certificate)
    ),
    "a huge value": _broken(
        {}, tls_crt=b"A" * (1 << 20), ca_crt=b"-----END CERTIFICATE-----\n" * 40_000
    ),
    "many certificates": _broken({}, ca_crt=OTHER.certificate * 1000),
}


@pytest.mark.parametrize("content", HOSTILE)
async def test_a_replica_serves_a_certificate_whatever_the_secret_has(
    content: str, tmp_path: Path
) -> None:
    cluster = Cluster(HOSTILE[content])
    keeper = keeper_of(cluster, tmp_path)
    await keeper.start()
    served = from_data(cluster.secret["data"]).served
    assert served is not None
    assert keeper.chain.read_bytes() == served.certificate
    assert served.certificate in cluster.trusts
    Certificate(keeper.chain, keeper.key).context()


UNEXPECTED: dict[str, bytes | Exception] = {
    "a defect": KeyError("a field"),
    "a full disk": OSError(28, "No space left on device"),
    "a configuration of another form": b'{"metadata": {}, "webhooks": 5}',
    "no version": b'{"metadata": {}, "webhooks": [{"clientConfig": {}}]}',
}
"""The second request of a step gets these; the first one reads the Secret."""
DEEP: Final = b'{"metadata": {"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}"
EXPECTED: dict[str, bytes | Exception] = {
    "no answer": ClusterUnavailable("down"),
    "a page": b"<html>",
    "deep JSON": DEEP,
}


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("webhook.keeper.EVERY_SECONDS", "webhook.keeper.FIRST_SECONDS"):
        monkeypatch.setattr(f"queuectl.{name}", 0.01)
    monkeypatch.setattr("queuectl.control.leader.schedule.FIRST_PAUSE", 0.01)


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 - of a task
            await asyncio.sleep(0.001)


def _serves(cluster: Cluster, keeper: CertificateKeeper) -> bool:
    """Whether the certificate of the Secret is served: a step has ended."""
    served = from_data(cluster.secret["data"]).served
    return served is not None and keeper.chain.read_bytes() == served.certificate


async def keeps(cluster: Cluster, keeper: CertificateKeeper, answer: bytes | Exception) -> None:
    """Get this answer, and after it an empty Secret, which is filled again."""
    secret = msgspec.json.encode(cluster.secret)
    running = asyncio.create_task(keeper.run())
    try:
        cluster.answers = [secret, answer, secret, answer]
        await until(lambda: not cluster.answers)
        cluster.secret["data"] = None
        await until(lambda: cluster.secret["data"] and _serves(cluster, keeper))
        assert not running.done()
    finally:
        running.cancel()
        await asyncio.wait({running})


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("answer", EXPECTED)
async def test_a_replica_tries_again_after_an_answer_that_is_no_object(
    answer: str, tmp_path: Path
) -> None:
    cluster = Cluster()
    cluster.answers = [EXPECTED[answer]]
    keeper = keeper_of(cluster, tmp_path)
    await keeper.start()
    await keeps(cluster, keeper, EXPECTED[answer])


@pytest.mark.sets_aside
@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("answer", UNEXPECTED)
async def test_an_unexpected_error_of_the_certificates_is_reported_and_they_are_tried_again(
    answer: str, tmp_path: Path
) -> None:
    reported: list[tuple[str, int]] = []
    containment = Containment(
        time.time, lambda found, _: reported.append((found.key, found.failures))
    )
    cluster = Cluster()
    cluster.answers = [msgspec.json.encode(cluster.secret), b"{}", UNEXPECTED["a defect"]]
    keeper = keeper_of(cluster, tmp_path, containment)
    await keeper.start()
    assert reported == [(TASK, 1)]
    assert containment.empty
    reported.clear()
    await keeps(cluster, keeper, UNEXPECTED[answer])
    assert reported == [(TASK, 1), (TASK, 2)]
    assert containment.empty, "the next step has passed"


@pytest.mark.sets_aside
@pytest.mark.usefixtures("soon")
async def test_a_webhook_answers_during_an_error_of_its_certificates_and_counts_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The certificates fail each time from then on."""
    cluster, stop, urls = Cluster(), asyncio.Event(), list[str]()

    async def connect(_: Connection) -> Cluster:
        return cluster

    monkeypatch.setattr(Api, "connect", connect)
    settings = WebhookSettings(ListenAddress("127.0.0.1", 0), "queuectl-system", NAMES)
    running = asyncio.create_task(serve(settings, stop, urls.append))
    await until(lambda: urls or running.done())
    verify = ssl.create_default_context(cadata=cluster.trusts.decode())
    cluster.configuration["webhooks"] = 5

    async def counted(client: httpx2.AsyncClient) -> bool:
        shown = (await client.get(f"{urls[0]}/metrics")).text
        return 'queuectl_set_aside{boundary="task"} 1.0' in shown

    async with httpx2.AsyncClient(verify=verify, trust_env=False) as client, asyncio.timeout(30):
        while not await counted(client):
            pass
        answer = await client.post(f"{urls[0]}/mutate/queuectl-jobs", content=review(JOB))
        assert answer.json()["response"]["allowed"] is True
    assert not running.done()
    stop.set()
    await running


async def test_a_replica_without_its_secret_names_the_missing_part_of_the_installation(
    tmp_path: Path,
) -> None:
    cluster = Cluster()
    cluster.answers = [ObjectGone("secrets: 404")]
    with pytest.raises(BadInput, match="deploy/older-servers: secrets: 404"):
        await keeper_of(cluster, tmp_path).start()
