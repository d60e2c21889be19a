"""The issuer as queuectl reads it: keys that rotate, outages, and discovery documents that are not accepted."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import pytest
from joserfc.jwk import RSAKey
from pydantic import ValidationError

from queuectl.api.oidc.issuer import AGAIN_SECONDS, FRESH_SECONDS, KEPT_SECONDS, Issuer
from queuectl.control.oidc_settings import OidcSettings
from queuectl.domain.errors import BadInput, IssuerUnavailable
from tests.oidc.issuers import ISSUER, KEY, ROTATED, FakeIssuer, settings


async def test_the_keys_are_read_once() -> None:
    fake = FakeIssuer()
    issuer = fake.issuer()
    found = await asyncio.gather(*(issuer.key("first", "RS256") for _ in range(20)))
    assert {key.kid for key in found if key} == {"first"}
    assert fake.requests == ["/.well-known/openid-configuration", "/jwks"]


async def test_a_rotated_key_is_accepted_and_the_one_before_ends() -> None:
    fake = FakeIssuer()
    issuer = fake.issuer()
    assert await issuer.key("first", "RS256")
    fake.keys = [KEY, ROTATED]
    fake.now += AGAIN_SECONDS
    assert await issuer.key("second", "RS256")
    assert await issuer.key("first", "RS256")
    fake.keys = [ROTATED]
    fake.now += FRESH_SECONDS
    assert await issuer.key("first", "RS256") is None


async def test_a_flood_of_unknown_key_ids_does_not_flood_the_issuer() -> None:
    fake = FakeIssuer()
    issuer = fake.issuer()
    for second in range(60):
        fake.now = float(second)
        assert not any(
            await asyncio.gather(*(issuer.key(f"made-up-{n}", "RS256") for n in range(50)))
        )
    assert fake.requests.count("/jwks") == 60 / AGAIN_SECONDS
    assert await issuer.key("first", "RS256")


async def test_an_issuer_that_is_down_is_asked_seldom_and_its_keys_count_for_an_hour() -> None:
    fake = FakeIssuer()
    issuer = fake.issuer()
    assert await issuer.key("first", "RS256")
    fake.down = True
    asked = len(fake.requests)
    for _ in range(10):
        fake.now += FRESH_SECONDS / 2
        assert await issuer.key("first", "RS256")
    assert len(fake.requests) - asked <= 10
    fake.now += KEPT_SECONDS
    with pytest.raises(IssuerUnavailable, match="connection refused"):
        await issuer.key("first", "RS256")
    fake.down = False
    fake.now += AGAIN_SECONDS
    assert await issuer.key("first", "RS256")


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"issuer": f"{ISSUER}/"}, "of the issuer"),
        ({"issuer": "https://evil.example"}, "of the issuer"),
        ({"issuer": None}, "of the issuer"),
        ({"jwks_uri": "http://issuer.example/jwks"}, "jwks_uri"),
        ({"token_endpoint": "http://issuer.example/token"}, "token_endpoint"),
        ({"authorization_endpoint": "javascript:alert(1)"}, "authorization_endpoint"),
        ({"token_endpoint": None}, "token_endpoint"),
        ({"code_challenge_methods_supported": ["plain"]}, "PKCE"),
    ],
)
async def test_a_discovery_document_that_is_wrong_is_refused(
    changed: dict[str, Any], why: str
) -> None:
    with pytest.raises(IssuerUnavailable, match=why):
        await FakeIssuer(discovery=changed).issuer().provider()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (httpx2.Response(500), "status 500"),
        (httpx2.Response(200, text="<html>"), "not a JSON object"),
        (httpx2.Response(200, json=[]), "not a JSON object"),
        (httpx2.Response(302, headers={"Location": "https://evil.example"}), "status 302"),
        (httpx2.Response(200, content=b"x" * (2 << 20)), "more than"),
    ],
)
async def test_an_answer_that_cannot_be_used_is_an_outage(
    answer: httpx2.Response, why: str
) -> None:
    http = httpx2.AsyncClient(transport=httpx2.MockTransport(lambda _: answer))
    with pytest.raises(IssuerUnavailable, match=why):
        await Issuer(settings(), http).provider()


async def test_keys_that_are_weak_private_or_not_for_signatures_are_left_out() -> None:
    weak = {"kty": "RSA", "kid": "weak", "n": "x" * 170, "e": "AQAB"}
    others = [
        weak,
        {"kty": "oct", "kid": "shared", "k": "c2VjcmV0"},
        {**KEY.as_dict(private=False), "kid": "encrypts", "use": "enc"},
        {"kty": "RSA", "kid": "broken"},
        "nonsense",
    ]

    class Raw:
        def __init__(self, body: object) -> None:
            self.body = body

        def as_dict(self) -> object:
            return self.body

    fake = FakeIssuer(keys=[KEY, *map(Raw, others)])
    provider = await fake.issuer().provider()
    assert [key.kid for key in provider.keys] == ["first"]


async def test_a_key_makes_signatures_of_its_own_algorithm_only() -> None:
    key = RSAKey.generate_key(2048, {"kid": "strict", "alg": "PS256"})
    issuer = FakeIssuer(keys=[key]).issuer()
    assert await issuer.key("strict", "RS256") is None
    assert await issuer.key("strict", "PS256")
    assert await issuer.key(None, "PS256")


async def test_the_secret_of_the_client_is_read_for_each_login(tmp_path: Path) -> None:
    issuer = FakeIssuer().issuer(settings(client_secret_file=tmp_path / "secret"))
    with pytest.raises(BadInput, match="QUEUECTL_OIDC__CLIENT_SECRET_FILE"):
        await issuer.exchange("code", "verifier", "https://x.example")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"issuer": "http://issuer.example"}, "https://"),
        ({"issuer": "http://127.0.0.1.evil.example"}, "https://"),
        ({"issuer": "issuer.example"}, "https://"),
        ({"issuer": "https://issuer.example?x=1"}, "query"),
        ({"issuer": "https://user@issuer.example"}, "user"),
        ({"dashboard_url": "http://queuectl.example"}, "https://"),
        ({"dashboard_url": "https://queuectl.example/ui"}, "path"),
        ({"client_id": ""}, "client ID"),
        ({"username_prefix": ""}, "at least 1 character"),
        ({"groups_prefix": ""}, "at least 1 character"),
        ({"username_prefix": "system:"}, "reserves"),
        ({"groups_prefix": "system:serviceaccounts:"}, "reserves"),
        ({"username_claim": ""}, "at least 1 character"),
    ],
)
def test_a_setting_that_is_not_safe_is_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        settings(**given)


def test_a_loopback_issuer_needs_no_tls() -> None:
    for url in ("http://127.0.0.1:8080", "http://[::1]:8080/realm", "http://localhost"):
        assert settings(issuer=url).issuer == url
    assert OidcSettings().issuer == ""


def test_openid_is_always_asked_for() -> None:
    assert settings(scopes="groups, email,groups").scope == "openid groups email"
