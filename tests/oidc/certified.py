"""A certified OpenID Connect provider, npm's oidc-provider, as a separate process."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx2
from joserfc.jwk import RSAKey

from tests.support.node import environment, node, node_tool

FOLDER: Final = Path(__file__).with_name("provider")
CLIENT, PUBLIC, OTHER, SECRET = "queuectl", "queuectl-public", "another-app", "the-client-secret"
LOCAL_CALLBACK: Final = "http://127.0.0.1:8000/callback"
"""Redirect URI of a program on the user's machine; nothing listens there."""
ACCOUNTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "alice": {"email": "alice@example.org", "email_verified": True, "groups": ["gpu-ops", "ml"]},
    "bob": {"email": "bob@example.org", "email_verified": True, "groups": "ml"},
    "eve": {"email": "eve@example.org", "email_verified": False, "groups": ["system:masters"]},
    "system:admin": {"groups": []},
}


@contextmanager
def provider(callbacks: Sequence[str], *, id_token_seconds: int = 3600) -> Iterator[str]:
    """The URL of the issuer, until the block ends. ``callbacks``: redirect URIs of its clients."""
    folder = node_tool(FOLDER)
    (folder / "provider.mjs").write_bytes((FOLDER / "provider.mjs").read_bytes())
    key = RSAKey.generate_key(2048, {"kid": "of-the-provider", "use": "sig", "alg": "RS256"})
    common = {"redirect_uris": list(callbacks), "grant_types": ["authorization_code"]}
    public = {"token_endpoint_auth_method": "none"}
    given = {
        "clients": [
            {"client_id": CLIENT, "client_secret": SECRET, **common},
            {"client_id": PUBLIC, **public, **common},
            {"client_id": OTHER, **public, **common},
        ],
        "accounts": ACCOUNTS,
        "idTokenSeconds": id_token_seconds,
        "key": key.as_dict(private=True),
    }
    process = subprocess.Popen(
        [node(), "provider.mjs", json.dumps(given)],
        cwd=folder,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # it warns of what is only for development
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        try:
            yield str(json.loads(process.stdout.readline())["issuer"])
        finally:
            process.stdin.close()
            process.wait(10)


async def authorize(http: httpx2.AsyncClient, address: str, login: str) -> str:
    """Log in at the provider as a browser does; the address to which it sends the browser back."""
    shown = await http.get(address)
    while shown.is_redirect and "/interaction/" not in str(shown.headers["location"]):
        shown = await http.get(shown.headers["location"])
    form = await http.get(shown.url.join(shown.headers["location"]))
    [target] = re.findall(r'action="([^"]+)"', form.text)
    fields = {"prompt": "login", "login": login, "password": "any"}
    answer = await http.post(form.url.join(target), data=fields)
    back = await http.get(answer.url.join(answer.headers["location"]))
    return str(back.headers["location"])
