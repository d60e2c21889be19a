"""The certificates that queuectl creates: their renewal, the Secret that keeps them, and where clients read what they trust."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import re
import ssl
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from queuectl.api.server import Certificate
from queuectl.control.certificate_keeper import (
    TASK,
    CertificateKeeper,
    from_data,
    in_config_map,
    to_data,
)
from queuectl.control.certificates import (
    MOST_TRUSTED,
    RENEWED,
    SETTLED,
    VALID,
    Certificates,
    advance,
    issue,
    server_names,
)
from queuectl.domain.containment import Containment
from queuectl.domain.errors import BadInput, ClusterUnavailable, ObjectGone
from tests.doubles.certificate_objects import CertificateObjects
from tests.support.polling import until

NOW = dt.datetime(2026, 11, 23, tzinfo=dt.UTC)
NAMES = ["queuectl.queuectl-system.svc", "127.0.0.1"]

# ---- certificates


def times(found: Certificates) -> tuple[int, int | None, int]:
    """The days at which the served certificate and its successor end, and the number of trusted ones."""
    ends = [
        (pair.read.not_valid_after_utc - NOW).days if pair is not None else None
        for pair in (found.served, found.successor)
    ]
    assert ends[0] is not None
    return ends[0], ends[1], len(found.trusted)


@pytest.mark.parametrize(
    "name",
    ["queues.example.com:8443", "https://queues.example.com", "[::1]", "a b", "a..b", "é.com"],
)
def test_a_name_that_no_client_can_ask_for_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match=f"{re.escape(repr(name))} is neither a DNS name nor an IP"):
        server_names(f"localhost,{name}")


def test_a_name_is_a_dns_name_or_an_address() -> None:
    names = ("*.example.com", "Queues_1.svc", "127.0.0.1", "2001:db8::1")
    assert server_names(",".join(names)) == names


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


def keeper_of(
    cluster: CertificateObjects, folder: Path, containment: Containment | None = None
) -> CertificateKeeper:
    return CertificateKeeper(
        cluster,
        "queuectl-system",
        "queuectl-tls",
        NAMES,
        Certificate(folder / "tls.crt", folder / "tls.key"),
        in_config_map(cluster, "queuectl-system", "queuectl-ca"),
        containment or Containment(time.time),
        if_missing="apply deploy/base",
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


def test_a_client_that_trusts_two_certificates_of_one_name_accepts_each(tmp_path: Path) -> None:
    """As during a renewal: their subjects are equal, so the identifiers of their keys distinguish them."""
    pairs = [issue(NAMES, dt.datetime.now(dt.UTC)) for _ in range(2)]
    for served in pairs:
        folder = tmp_path / str(pairs.index(served))
        folder.mkdir()
        files = Certificate(folder / "tls.crt", folder / "tls.key")
        files.chain.write_bytes(served.certificate)
        files.key.write_bytes(served.key)
        for trusted in (pairs, pairs[::-1]):
            client = ssl.create_default_context(
                cadata="".join(pair.certificate.decode() for pair in trusted)
            )
            # The default before 3.13.
            client.verify_flags &= ~ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
            to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
            ends = [
                client.wrap_bio(to_client, to_server, server_hostname=NAMES[0]),
                files.context().wrap_bio(to_server, to_client, server_side=True),
            ]
            for _ in range(3):
                for end in ends:
                    with suppress(ssl.SSLWantReadError):
                        end.do_handshake()
            assert ends[0].version() is not None
            assert ends[0].getpeercert()


@pytest.mark.parametrize("content", HOSTILE)
async def test_a_replica_serves_a_certificate_whatever_the_secret_has(
    content: str, tmp_path: Path
) -> None:
    cluster = CertificateObjects(HOSTILE[content])
    keeper = keeper_of(cluster, tmp_path)
    await keeper.start()
    served = from_data(cluster.secret["data"]).served
    assert served is not None
    assert keeper.files.chain.read_bytes() == served.certificate
    assert served.certificate in cluster.trusted_by_clients
    Certificate(keeper.files.chain, keeper.files.key).context()


UNEXPECTED: dict[str, bytes | Exception] = {
    "a defect": KeyError("a field"),
    "a full disk": OSError(28, "No space left on device"),
    "no version": b'{"metadata": {}}',
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
    for name in ("EVERY_SECONDS", "FIRST_SECONDS"):
        monkeypatch.setattr(f"queuectl.control.certificate_keeper.{name}", 0.01)
    monkeypatch.setattr("queuectl.control.leader.schedule.FIRST_PAUSE", 0.01)


def _serves(cluster: CertificateObjects, keeper: CertificateKeeper) -> bool:
    """Whether the certificate of the Secret is served: a step has ended."""
    served = from_data(cluster.secret["data"]).served
    return served is not None and keeper.files.chain.read_bytes() == served.certificate


async def keeps(
    cluster: CertificateObjects, keeper: CertificateKeeper, answer: bytes | Exception
) -> None:
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
async def test_a_replica_tries_again_after_an_answer_that_is_not_an_object(
    answer: str, tmp_path: Path
) -> None:
    cluster = CertificateObjects()
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
    cluster = CertificateObjects()
    cluster.answers = [msgspec.json.encode(cluster.secret), b"{}", UNEXPECTED["a defect"]]
    keeper = keeper_of(cluster, tmp_path, containment)
    await keeper.start()
    assert reported == [(TASK, 1)]
    assert containment.empty
    reported.clear()
    await keeps(cluster, keeper, UNEXPECTED[answer])
    assert reported == [(TASK, 1), (TASK, 2)]
    assert containment.empty, "the next step has passed"


async def test_a_replica_without_its_secret_names_the_missing_part_of_the_installation(
    tmp_path: Path,
) -> None:
    cluster = CertificateObjects()
    cluster.answers = [ObjectGone("secrets: 404")]
    with pytest.raises(BadInput, match="apply deploy/base: secrets: 404"):
        await keeper_of(cluster, tmp_path).start()


async def test_a_write_that_another_replica_forestalls_is_tried_again(
    soon: None, tmp_path: Path
) -> None:
    cluster = CertificateObjects()
    cluster.conflicts = 2  # the Secret, then the ConfigMap
    keeper = keeper_of(cluster, tmp_path)
    await keeper.start()
    assert cluster.conflicts == 0
    assert keeper.files.chain.read_bytes() == cluster.trusted_by_clients


@pytest.mark.parametrize("content", [None, ["ca.crt"], {"ca.crt": 5}, {"other": "x"}, "ca.crt"])
async def test_clients_read_the_authority_whatever_the_config_map_had(
    content: object, tmp_path: Path
) -> None:
    cluster = CertificateObjects()
    cluster.config_map["data"] = content
    keeper = keeper_of(cluster, tmp_path)
    await keeper.start()
    assert keeper.files.chain.read_bytes() == cluster.trusted_by_clients


async def test_files_of_a_process_that_was_killed_between_them_are_written_again(
    tmp_path: Path,
) -> None:
    """The key of one certificate, and another certificate."""
    cluster = CertificateObjects()
    (tmp_path / "tls.crt").write_bytes(issue(NAMES, NOW).certificate)
    (tmp_path / "tls.key").write_bytes(OTHER.key)
    keeper = keeper_of(cluster, tmp_path)
    await keeper.start()
    Certificate(keeper.files.chain, keeper.files.key).context()
    assert keeper.files.key.stat().st_mode & 0o077 == 0


async def test_a_successor_is_served_after_clients_could_read_it(tmp_path: Path) -> None:
    cluster = CertificateObjects()
    keeper = keeper_of(cluster, tmp_path)
    await keeper.step(NOW)
    first = keeper.files.chain.read_bytes()
    await keeper.step(NOW + VALID - RENEWED)
    assert keeper.files.chain.read_bytes() == first
    trusted = cluster.trusted_by_clients
    assert trusted.startswith(first)
    await keeper.step(NOW + VALID - RENEWED + SETTLED)
    assert keeper.files.chain.read_bytes() != first
    assert keeper.files.chain.read_bytes() in trusted
