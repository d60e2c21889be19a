"""The settings that decide whether and how the API is served."""

from __future__ import annotations

import asyncio
import re
import ssl
from pathlib import Path
from typing import Any

import httpx2
import pytest
from cryptography import x509
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from queuectl.api import server
from queuectl.api.auth.start import Offer, offer
from queuectl.api.server import Certificate, WebServer
from queuectl.cli.main import run
from queuectl.control.listen_address import ListenAddress
from queuectl.control.settings import settings_names
from queuectl.domain.errors import BadInput
from tests.support.logs import restored_logs
from tests.support.tls import write_certificate

__all__ = ["restored_logs"]

LOOPBACK, ANYWHERE = "127.0.0.1:8000", "0.0.0.0:8000"
CERT = {"cert_file": Path("tls.crt"), "key_file": Path("tls.key")}


def offered(listen: str, **given: Any) -> Offer:
    nothing: dict[str, Any] = {"auth": None, "cert_file": None, "key_file": None, "tls": True}
    return offer(listen, **{**nothing, **given})


def test_trusted_proxies_are_addresses_and_networks() -> None:
    found = offered(ANYWHERE, **CERT, trusted_proxies=" 10.0.0.1, fd00::/8,")
    assert found.proxies == ("10.0.0.1", "fd00::/8")
    for text in ("*", "ingress", "10.0.0.1/8"):
        with pytest.raises(BadInput, match="QUEUECTL_TRUSTED_PROXIES"):
            offered(ANYWHERE, **CERT, trusted_proxies=text)


@pytest.mark.parametrize(
    ("listen", "given", "authenticated", "encrypts", "secure"),
    [
        (LOOPBACK, {}, False, False, False),
        ("localhost:8000", {}, False, False, False),
        ("[::1]:8000", {}, False, False, False),
        (LOOPBACK, {"auth": "none"}, False, False, False),
        (LOOPBACK, {"auth": "kubernetes"}, True, False, False),
        (LOOPBACK, {"auth": "kubernetes", **CERT}, True, True, True),
        (
            LOOPBACK,
            {"auth": "kubernetes", "tls": False},
            True,
            False,
            True,
        ),  # an ingress in the same pod
        (ANYWHERE, CERT, True, True, True),
        (ANYWHERE, {"auth": "kubernetes", **CERT}, True, True, True),
        (ANYWHERE, {"tls": False}, True, False, True),
    ],
)
def test_the_settings_define_address_and_tls(
    listen: str, given: dict[str, Any], authenticated: bool, encrypts: bool, secure: bool
) -> None:
    found = offered(listen, **given)
    assert found.authenticated is authenticated
    assert (found.certificate is not None) is encrypts
    assert found.secure is secure


@pytest.mark.parametrize(
    ("listen", "given", "why"),
    [
        (ANYWHERE, {"auth": "none"}, "could do everything"),
        (ANYWHERE, {"auth": "none", **CERT}, "could do everything"),
        (ANYWHERE, {"auth": "none", "tls": False}, "could do everything"),
        ("10.0.0.1:80", {}, "without TLS"),
        ("[::]:80", {"auth": "kubernetes"}, "without TLS"),
        ("localhost.example:80", {}, "without TLS"),
    ],
)
def test_unsafe_settings_are_refused(listen: str, given: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInput, match=why) as refused:
        offered(listen, **given)
    named = set(re.findall(r"QUEUECTL_[A-Z_]*[A-Z]", str(refused.value)))
    assert named
    assert named <= settings_names()


@pytest.mark.parametrize(
    "given",
    [
        {"cert_file": Path("tls.crt")},
        {"key_file": Path("tls.key")},
        {**CERT, "tls": False},
    ],
)
def test_contradicting_settings_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="QUEUECTL_TLS"):
        offered(ANYWHERE, **given)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"LISTEN": "0.0.0.0:0"}, "without TLS"),
        ({"LISTEN": "0.0.0.0:0", "AUTH": "none"}, "could do everything"),
        ({"TLS_KEY_FILE": "x"}, "go together"),
        ({"TLS_SECRET": "x"}, "QUEUECTL_TLS_SECRET"),
        ({"TRUSTED_PROXIES": "10.0.0.1/8"}, "QUEUECTL_TRUSTED_PROXIES"),
        ({"AUTH": "maybe"}, "QUEUECTL_AUTH"),
        ({"OIDC__ISSUER": "http://issuer.example"}, "QUEUECTL_OIDC__ISSUER"),
        ({"OIDC__ISSUER": "https://issuer.example"}, "QUEUECTL_OIDC__CLIENT_ID"),
        ({"OIDC__USERNAME_PREFIX": "system:"}, "QUEUECTL_OIDC__USERNAME_PREFIX"),
        (
            {"OIDC__ISSUER": "https://issuer.example", "OIDC__CLIENT_ID": "queuectl"},
            "set QUEUECTL_AUTH=kubernetes",
        ),
        ({"REQUEST_BURST": "0"}, "QUEUECTL_REQUEST_BURST"),
    ],
)
@pytest.mark.usefixtures("restored_logs")
def test_serve_reports_wrong_settings_before_it_connects_to_anything(
    settings: dict[str, str],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(f"QUEUECTL_{name}", value)
    monkeypatch.setattr("sys.argv", ["queuectl", "serve"])
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


# ---- TLS


async def subject_of(address: ListenAddress) -> str:
    """The name in the certificate that a new connection is shown."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection(address.host, address.port, ssl=context)
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    await writer.wait_closed()
    [name] = x509.load_der_x509_certificate(shown).subject
    return str(name.value)


async def test_it_answers_over_tls_and_loads_a_renewed_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "RENEWED_SECONDS", 0.01)
    served = WebServer(app(), ListenAddress("127.0.0.1", 0), write_certificate(tmp_path, "first"))
    running = asyncio.create_task(served.run())
    trusted = ssl.create_default_context()
    trusted.check_hostname, trusted.verify_mode = False, ssl.CERT_NONE
    async with httpx2.AsyncClient(verify=trusted, trust_env=False) as client:
        assert served.url.startswith("https://")
        assert (await client.get(served.url)).text == "https"
    assert await subject_of(served.address) == "first"

    (tmp_path / "tls.key").write_text("half written")
    await asyncio.sleep(0.05)
    assert await subject_of(served.address) == "first"

    write_certificate(tmp_path, "second")
    while await subject_of(served.address) != "second":  # noqa: ASYNC110 - of what is on disk
        await asyncio.sleep(0.01)
    served.stop()
    await running


def app() -> Starlette:
    async def scheme(request: Request) -> Response:
        return PlainTextResponse(request.url.scheme)

    return Starlette(routes=[Route("/", scheme)])


def test_an_unusable_certificate_is_reported_at_the_start(tmp_path: Path) -> None:
    missing = Certificate(tmp_path / "tls.crt", tmp_path / "tls.key")
    with pytest.raises(BadInput, match=r"tls\.crt"):
        WebServer(app(), ListenAddress("127.0.0.1", 0), missing)
    other = write_certificate(tmp_path, "other")
    (tmp_path / "own").mkdir()
    own = write_certificate(tmp_path / "own", "own")
    with pytest.raises(BadInput, match="TLS certificate"):
        WebServer(app(), ListenAddress("127.0.0.1", 0), Certificate(own.chain, other.key))
