"""An exec plugin of kubeconfigs: `python -m tests.oidc.plugin ISSUER CLIENT LOGIN` logs in and prints an ExecCredential.

It does what plugins such as kubelogin do, with the form of the provider instead of a browser.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import secrets
import sys
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx2

from tests.oidc.certified import LOCAL_CALLBACK, authorize


async def id_token(issuer: str, client: str, login: str) -> str:
    """A fresh ID token of this user for this client."""
    verifier = secrets.token_urlsafe(48)
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest())
    asked = {
        "response_type": "code",
        "client_id": client,
        "redirect_uri": LOCAL_CALLBACK,
        "scope": "openid email groups",
        "code_challenge": challenge.rstrip(b"=").decode(),
        "code_challenge_method": "S256",
    }
    async with httpx2.AsyncClient(trust_env=False) as http:
        found = (await http.get(f"{issuer}/.well-known/openid-configuration")).json()
        back = await authorize(http, f"{found['authorization_endpoint']}?{urlencode(asked)}", login)
        form = {
            "grant_type": "authorization_code",
            "code": parse_qs(urlsplit(back).query)["code"][0],
            "code_verifier": verifier,
            "redirect_uri": LOCAL_CALLBACK,
            "client_id": client,
        }
        answer = await http.post(found["token_endpoint"], data=form)
        return str(answer.json()["id_token"])


def main() -> None:
    """Print the credential, as client.authentication.k8s.io/v1 has it."""
    asked = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
    token = asyncio.run(id_token(*sys.argv[1:]))
    kind = {"apiVersion": asked["apiVersion"], "kind": asked["kind"]}
    print(json.dumps({**kind, "status": {"token": token}}))


if __name__ == "__main__":
    main()
