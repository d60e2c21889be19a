"""The mail address of a user: kept at a sign-in whose ID token has a verified one, and at no other time."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from queuectl.domain.mail_addresses import LONGEST, plain_address, verified_address
from queuectl.notify.receivers_file import ReceiverList
from tests.api.signed import asking
from tests.api.test_auth import OWN_PAGE
from tests.doubles.store import MemoryStore
from tests.oidc.issuers import FakeIssuer, browser_of, claims, signed
from tests.oidc.test_login import SESSION, back, started

USER = "oidc:alice"
VERIFIED = {"email": "Alice@Example.ORG", "email_verified": True}

NOT_VERIFIED: list[dict[str, Any]] = [
    {},
    {"email": "alice@example.org"},
    {"email_verified": True},
    *({"email": "alice@example.org", "email_verified": said} for said in ("true", 1, [True], None, False, {"x": 1})),
    *({"email": email, "email_verified": True} for email in (
        ["alice@example.org"], {"x": "alice@example.org"}, 5, None, True, "",
        "alice", "@example.org", "alice@", "a@b@example.org", "alice@example.org, bob@example.org",
        "alice@example.org\r\nBcc: bob@example.org", "alice@example.org\n", "\talice@example.org",
        "Alice <alice@example.org>", '"a b"@example.org', "alice(x)@example.org", "alice@[10.0.0.1]",
        "alice@10.0.0.1", "alice@127.1", ".alice@example.org", "a..b@example.org", "alice@-example.org",
        "alice@example..org", "alice@exämple.org", "älice@example.org", "alice@example.org\u202e",
        "bob%example.org@relay.example", "a" * 65 + "@example.org", "alice@" + "a." * 140 + "org",
        "alice@example.org\0",
    )),
]  # fmt: skip


def test_an_address_counts_only_if_it_is_plain_and_the_issuer_has_verified_it() -> None:
    assert [given for given in NOT_VERIFIED if verified_address(given)] == []
    assert verified_address(VERIFIED) == "Alice@example.org"
    assert plain_address("a" * 64 + "@" + "b" * 63 + ".org") is not None
    assert len("a@" + "b." * 150 + "org") > LONGEST
    for plain in (
        "first.last+tag@mail.example.org",
        "o'neil@example.org",
        "a@localhost",
        "x_1@a-b.de",
    ):
        assert plain_address(plain) == plain


@pytest.fixture
def issuer() -> FakeIssuer:
    return FakeIssuer()


async def signed_in_with(
    browser: httpx2.AsyncClient, issuer: FakeIssuer, given: dict[str, Any]
) -> None:
    issuer.token = given
    answer = await back(browser, issuer.authorize(await started(browser)))
    assert answer.headers["location"].startswith("/ui/signin/done"), answer.headers["location"]


async def test_each_sign_in_replaces_the_address_or_removes_it(
    issuer: FakeIssuer, memory: MemoryStore
) -> None:
    kept = memory.database.notifications.addresses
    async with browser_of(issuer.app(memory, receivers=ReceiverList())) as browser:
        await signed_in_with(browser, issuer, VERIFIED)
        assert kept == {USER: "Alice@example.org"}
        await signed_in_with(browser, issuer, {**VERIFIED, "email": "a@example.net"})
        assert kept == {USER: "a@example.net"}
        # The key is the user as RBAC knows it: another user of the issuer changes nothing for alice.
        await signed_in_with(browser, issuer, {**VERIFIED, "sub": "Alice"})
        assert kept[USER] == "a@example.net"
        await signed_in_with(browser, issuer, {**VERIFIED, "email_verified": "true"})
        assert USER not in kept


async def test_a_pasted_id_token_counts_and_one_of_the_cluster_states_nothing(
    issuer: FakeIssuer, memory: MemoryStore
) -> None:
    app = issuer.app(memory, receivers=ReceiverList())
    kept = memory.database.notifications.addresses
    async with asking(app) as browser:
        own = OWN_PAGE | {"Origin": str(browser.base_url)}
        body = {"token": signed(claims(**VERIFIED))}
        assert (await browser.post(SESSION, json=body, headers=own)).status_code == 201
        assert kept == {USER: "Alice@example.org"}
        body = {"token": "of-the-admin"}
        assert (await browser.post(SESSION, json=body, headers=own)).status_code == 201
        assert kept == {USER: "Alice@example.org"}


async def test_a_request_with_a_token_does_not_count_as_a_sign_in(
    issuer: FakeIssuer, memory: MemoryStore
) -> None:
    async with asking(
        issuer.app(memory, receivers=ReceiverList()), signed(claims(**VERIFIED))
    ) as client:
        assert (await client.get(SESSION)).status_code == 200
    assert memory.database.notifications.addresses == {}


async def test_without_receivers_no_address_is_kept(
    issuer: FakeIssuer, memory: MemoryStore
) -> None:
    async with browser_of(issuer.app(memory)) as browser:
        await signed_in_with(browser, issuer, VERIFIED)
    assert memory.database.notifications.addresses == {}
