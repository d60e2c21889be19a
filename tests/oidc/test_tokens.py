"""ID tokens at the REST API: attacks, one row each, and what is accepted."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from joserfc.jwk import OctKey

from queuectl.api.problems import ApiProblem, ProblemType
from queuectl.domain.identity import Caller
from tests.api.signed import ADMIN, asking, people
from tests.doubles.store import MemoryStore
from tests.oidc.issuers import ATTACKER_KEY, CLIENT, CURVE, ISSUER, KEY, FakeIssuer, claims, signed

SESSION = "/api/v1/session"
NOT_OURS = "asked the cluster, which does not take it"


async def refusal(token: str, **given: Any) -> str:
    """Why a token is refused."""
    problem = None
    try:
        assert await FakeIssuer().access(**given).who(token) is None
    except ApiProblem as error:
        problem = error
    if problem is None:
        return NOT_OURS
    assert problem.kind is ProblemType.UNAUTHENTICATED
    assert token not in problem.detail
    return problem.detail


def unsigned(body: dict[str, Any], algorithm: str = "none", **header: Any) -> str:
    """A token whose header names an algorithm without a signature."""
    head = {"alg": algorithm, "kid": KEY.kid, **header}
    parts = [json.dumps(part).encode() for part in (head, body)]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts) + "."


def by_public_key(body: dict[str, Any]) -> str:
    """HS256 with the published key as the secret."""
    secret = OctKey.import_key(KEY.as_pem(private=False).decode().replace("-----", ""))
    return signed(body, secret, "HS256", kid=KEY.kid)


def altered(body: dict[str, Any]) -> str:
    """The claims are changed after the signature."""
    head, _, signature = signed(claims()).split(".")
    changed = base64.urlsafe_b64encode(json.dumps(body).encode()).rstrip(b"=").decode()
    return f"{head}.{changed}.{signature}"


ATTACKS: dict[str, tuple[Callable[[], str], str]] = {
    "wrong issuer": (lambda: signed(claims(iss="https://evil.example")), NOT_OURS),
    "issuer with a slash": (lambda: signed(claims(iss=f"{ISSUER}/")), NOT_OURS),
    "wrong audience": (lambda: signed(claims(aud="another-app")), "for another audience"),
    "no audience": (lambda: signed(claims(aud=None)), "no claim aud"),
    "audience of odd types": (lambda: signed(claims(aud=[{"a": CLIENT}])), "another audience"),
    "another authorized party": (lambda: signed(claims(azp="another-app")), "azp"),
    "two audiences, no party": (lambda: signed(claims(aud=[CLIENT, "another-app"])), "azp"),
    "alg none": (lambda: unsigned(claims()), "algorithm"),
    "alg NoNe": (lambda: unsigned(claims(), "NoNe"), "algorithm"),
    "HS256 with the public key": (lambda: by_public_key(claims()), "algorithm"),
    "a key of an attacker": (lambda: signed(claims(), ATTACKER_KEY), "signature"),
    "claims changed": (lambda: altered(claims(sub="admin")), "signature"),
    "the key in the header": (
        lambda: signed(claims(), ATTACKER_KEY, jwk=ATTACKER_KEY.as_dict(private=False)),
        "signature",
    ),
    "algorithm of another kind of key": (
        lambda: signed(claims(), CURVE, "ES256", kid=KEY.kid),
        "signature",
    ),
    "unknown critical header": (
        lambda: unsigned(claims(), "RS256", crit=["x"], x=1),
        "signature",
    ),
    "unknown kid": (lambda: signed(claims(), KEY, kid="another"), "no key"),
    "no kid, and several keys": (lambda: signed(claims(), KEY, kid=None), "no key"),
    "kid of another type": (lambda: unsigned(claims(), "RS256", kid=7), "no key"),
    "expired": (lambda: signed(claims(exp=int(time.time()) - 60)), "expired"),
    "never expires": (lambda: signed(claims(exp=None)), "no claim exp"),
    "expires at NaN": (lambda: signed(claims(exp=float("nan"))), "exp"),
    "not valid yet": (lambda: signed(claims(nbf=int(time.time()) + 600)), "not valid yet"),
    "issued in the future": (lambda: signed(claims(iat=int(time.time()) + 600)), "in the future"),
    "no time of issue": (lambda: signed(claims(iat=None)), "no claim iat"),
    "no user name": (lambda: signed(claims(sub=None)), "no claim sub"),
    "empty user name": (lambda: signed(claims(sub="")), "sub"),
    "user name that is not a text": (lambda: signed(claims(sub=["alice"])), "sub"),
    "line break in the user name": (lambda: signed(claims(sub="alice\nadmin")), "printable"),
    "system: user": (lambda: signed(claims(sub="system:admin")), "reserves"),
    "system: group": (lambda: signed(claims(groups=["ml", "system:masters"])), "reserves"),
    "system: group as text": (lambda: signed(claims(groups="system:masters")), "reserves"),
    "groups that are not text": (lambda: signed(claims(groups=["ml", 7])), "groups"),
    "groups of another type": (lambda: signed(claims(groups={"ml": True})), "neither text"),
    "huge token": (lambda: signed(claims(groups=["g" * 40] * 400)), NOT_OURS),
    "deeply nested claims": (
        lambda: f"e30.{base64.urlsafe_b64encode(b'[' * 9000).decode()}.sig",
        NOT_OURS,
    ),
    "encrypted token": (lambda: "a.b.c.d.e", NOT_OURS),
}


@pytest.mark.parametrize("attack", ATTACKS)
async def test_a_forged_or_foreign_token_is_refused(attack: str) -> None:
    make, why = ATTACKS[attack]
    assert why in await refusal(make())


ACCEPTED: dict[str, tuple[Callable[[], str], dict[str, Any], str, list[str]]] = {
    "groups as a list": (
        lambda: signed(claims(groups=["ml", "gpu-ops", "ml"])),
        {},
        "oidc:alice",
        ["oidc:ml", "oidc:gpu-ops"],
    ),
    "groups as text": (lambda: signed(claims(groups="ml")), {}, "oidc:alice", ["oidc:ml"]),
    "no groups": (lambda: signed(claims()), {}, "oidc:alice", []),
    "signature of a curve": (lambda: signed(claims(), CURVE, "ES256"), {}, "oidc:alice", []),
    "audiences as a list": (
        lambda: signed(claims(aud=[CLIENT, "x"], azp=CLIENT)), {}, "oidc:alice", [],
    ),
    "audience of kubectl": (
        lambda: signed(claims(aud="kubernetes")),
        {"audiences": "queuectl, kubernetes"},
        "oidc:alice",
        [],
    ),
    "clocks that differ a little": (
        lambda: signed(claims(iat=int(time.time()) + 5, nbf=int(time.time()) + 5)),
        {},
        "oidc:alice",
        [],
    ),
    "other claims and prefixes": (
        lambda: signed(claims(email="a@example.org", email_verified=True, roles=["ml"])),
        {
            "username_claim": "email",
            "username_prefix": "corp-",
            "groups_claim": "roles",
            "groups_prefix": "-",
        },
        "corp-a@example.org",
        ["ml"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ACCEPTED)
async def test_claims_become_a_user_with_groups(case: str) -> None:
    make, given, name, groups = ACCEPTED[case]
    caller = await FakeIssuer().access(**given).who(make())
    assert caller == Caller(name, (*groups, "system:authenticated"))


@pytest.mark.parametrize(
    ("given", "body", "why"),
    [
        ({"username_prefix": "system"}, {"sub": ":masters"}, "reserves"),
        ({"groups_prefix": "sys"}, {"groups": ["tem:masters"]}, "reserves"),
        ({"username_prefix": "-"}, {"sub": "system:admin"}, "reserves"),
        ({"username_claim": "email"}, {"email": "a@b", "email_verified": False}, "email_verified"),
        ({"username_claim": "email"}, {"email": "a@b", "email_verified": "true"}, "email_verified"),
        ({"username_claim": "email"}, {}, "no claim email"),
    ],
)
async def test_a_name_that_kubernetes_reserves_is_refused_after_prefixing_too(
    given: dict[str, Any], body: dict[str, Any], why: str
) -> None:
    assert why in await refusal(signed(claims(**body)), **given)


async def test_a_user_of_the_issuer_is_not_the_user_of_the_cluster_of_that_name(
    memory: MemoryStore,
) -> None:
    """``admin`` of the cluster may do everything; ``oidc:admin`` is another user."""
    token = signed(claims(sub="admin"))
    async with asking(FakeIssuer().app(memory), token) as client:
        assert (await client.get("/api/v1/cohorts")).status_code == 403
    async with asking(FakeIssuer().app(memory, username_prefix="-"), token) as client:
        assert (await client.get("/api/v1/cohorts")).status_code == 200


async def test_rights_are_those_that_the_cluster_gives_the_prefixed_user(
    memory: MemoryStore,
) -> None:
    access = people()
    access.masters.add("oidc:alice")
    async with asking(FakeIssuer().app(memory, access), signed(claims())) as client:
        assert (await client.get("/api/v1/cohorts")).status_code == 200
    assert {name for name, _ in access.asked} == {"oidc:alice"}


async def test_tokens_of_the_cluster_are_accepted_as_before(memory: MemoryStore) -> None:
    issuer = FakeIssuer(down=True)
    async with asking(issuer.app(memory), ADMIN) as client:
        assert (await client.get(SESSION)).json()["name"] == "admin"
    assert issuer.requests == []


async def test_a_token_of_the_issuer_never_reaches_the_api_server() -> None:
    cluster = people()
    token = signed(claims(aud="another-app"))
    cluster.know(token, "alice", master=True)
    with pytest.raises(ApiProblem, match="another audience"):
        await FakeIssuer().access(cluster).who(token)


async def test_a_pasted_id_token_opens_a_session_that_ends_with_it(memory: MemoryStore) -> None:
    token = signed(claims(exp=int(time.time()) + 90))
    async with asking(FakeIssuer().app(memory)) as client:
        answer = await client.post(SESSION, json={"token": token})
        assert answer.json()["name"] == "oidc:alice"
        [session] = memory.database.sessions.values()
        assert session.until - session.since <= 91
        refused = await client.post(SESSION, json={"token": signed(claims(aud="x"))})
        assert refused.status_code == 401
        assert "another audience" in refused.json()["detail"]


async def test_an_issuer_that_is_down_is_named_and_no_caller_is_accepted(
    memory: MemoryStore,
) -> None:
    async with asking(FakeIssuer(down=True).app(memory), signed(claims())) as client:
        answer = await client.get(SESSION)
    assert answer.status_code == 503
    assert answer.json()["type"].endswith("/issuer-unavailable")
    assert "connection refused" in answer.json()["detail"]
    assert answer.headers["retry-after"]
