"""A short-lived token of a ServiceAccount, which the cluster issues to the user of the kubeconfig.

queuectl's API accepts only tokens. Administrators of small clusters often have a client certificate and no token. The API
server issues them a token of each ServiceAccount for which they can create tokens (``kubectl create token``).
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

import httpx2

from queuectl.client import kubernetes
from queuectl.client.errors import InvalidOption, TokenNotIssued
from queuectl.kubeconfig import KubeconfigContext

LASTS_SECONDS: Final = 600  # the minimum of Kubernetes; a longer command requests another token
_OWN: Final = (401, 403, 404)  # answers whose cause is the caller, or the name


def made_for(account: str, context: KubeconfigContext | None, option: str) -> str:
    """A new token.

    Args:
        account: ``namespace/name`` of the ServiceAccount.
        context: the user and the cluster of the kubeconfig.
        option: the option that names the ServiceAccount, for messages.

    Raises:
        ClientError: the cluster issues no token; the message has the reason.
    """
    namespace, _, name = account.partition("/")
    if not (namespace and name) or "/" in name:
        message = f"{option} {account!r}: not of the form NAMESPACE/NAME"
        raise InvalidOption(message)
    if context is None or not context.cluster.get("server"):
        message = f"{option} {account}: needs a kubeconfig with a cluster"
        raise InvalidOption(message)
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/serviceaccounts/{quote(name, safe='')}/token"
    response = _answer(context, path)
    if response.status_code >= httpx2.codes.BAD_REQUEST:
        error = kubernetes.failure(response, f"no token of ServiceAccount {account}: ")
        raise error if response.status_code in _OWN else TokenNotIssued(str(error))
    status = kubernetes.document(response).get("status")
    token = status.get("token") if isinstance(status, dict) else None
    if not isinstance(token, str) or not token:
        raise TokenNotIssued(
            f"{context.cluster['server']}: the answer has no token: this isn't a Kubernetes API server"
        )
    return token


def _answer(context: KubeconfigContext, path: str) -> httpx2.Response:
    """The answer of the API server."""
    server = kubernetes.server_of(context)
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": LASTS_SECONDS},
    }
    with server.errors(), httpx2.Client(**server.arguments) as http:
        return http.post(path, json=body, extensions=dict(server.extensions))
