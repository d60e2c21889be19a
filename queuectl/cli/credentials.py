"""The bearer token of a command: from a file, or from the kubeconfig.

A command sends a token only after the server has answered 401: a server without authentication needs none, and an exec plugin
can take seconds or open a browser. A token is never sent unencrypted to another machine, and never part of a message.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Generator, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

import httpx2

from queuectl.cli.errors import CommandFailed, Exit
from queuectl.kubeconfig import KubeconfigContext

# ---- Bearer tokens

PLUGIN_SECONDS: Final = 120.0  # a plugin can ask the user to sign in
_EXEC_GROUP: Final = "client.authentication.k8s.io/"
_TOKEN: Final = re.compile(r"[!-~]+")
_HOW_TO_CREATE: Final = "create a token with `kubectl create token SERVICEACCOUNT -n NAMESPACE > token`, and give it with --token-file token"
_ACT_AS: Final = "act as a ServiceAccount with --as-serviceaccount NAMESPACE/NAME"

Finder = Callable[[], str]


class TokenAuth(httpx2.Auth):
    """Sends the token after the server has answered 401, and a new token when the server refuses the old one."""

    def __init__(self, find: Finder) -> None:
        """``find`` raises CommandFailed when there is no token."""
        self._find = find
        self._token: str | None = None

    def auth_flow(
        self, request: httpx2.Request
    ) -> Generator[httpx2.Request, httpx2.Response, None]:
        """One request, sent again with a token if the server answers 401."""
        if self._token is not None:
            request.headers["Authorization"] = f"Bearer {self._token}"
        response = yield request
        if response.status_code != httpx2.codes.UNAUTHORIZED:
            return
        only_encrypted(request.url)
        fresh = self._find()
        if fresh != self._token:
            self._token = fresh
            request.headers["Authorization"] = f"Bearer {fresh}"
            yield request


def loopback(host: str) -> bool:
    """Whether the host is this machine."""
    try:
        return host == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def only_encrypted(url: httpx2.URL) -> None:
    """Raises CommandFailed where a token would be sent unencrypted over a network."""
    if url.scheme != "https" and not loopback(url.host):
        raise CommandFailed(
            f"{url.host} requires a token, which http:// would send unencrypted: give an https:// address",
            Exit.NOT_ALLOWED,
        )


def from_file(path: Path) -> str:
    """The token in a file.

    Raises:
        CommandFailed: the file cannot be read, or holds no token.
    """
    try:
        content = path.expanduser().read_text(errors="replace")
    except OSError as error:
        raise CommandFailed(f"token file {path}: {error.strerror}", Exit.BAD_INPUT) from error
    return checked_token(content, f"token file {path}")


def of_context(context: KubeconfigContext | None) -> str:
    """The token of the kubeconfig's user.

    Raises:
        CommandFailed: the user has no token; the message names the ways to get one.
    """
    if context is None:
        raise _none("the server requires a token, and there is no kubeconfig")
    login = context.login
    whose = f"user {context.user!r} of the kubeconfig's context {context.name!r}"
    if login.get("tokenFile"):  # it has precedence over token, as in kubectl
        return from_file(context.folder / str(login["tokenFile"]))
    if login.get("token"):
        return checked_token(str(login["token"]), f"the token of {whose}")
    given = of_plugin(context)
    if given.get("token"):
        return checked_token(str(given["token"]), f"the output of the plugin of {whose}")
    if has_certificate(login) or given.get("clientCertificateData"):
        why = f"{whose} has a client certificate, which only the API server of Kubernetes accepts"
        raise CommandFailed(f"{why}: {_ACT_AS}, or {_HOW_TO_CREATE}", Exit.NOT_ALLOWED)
    raise _none(f"the server requires a token, and {whose} has none")


def has_certificate(login: Mapping[str, Any]) -> bool:
    """Whether the kubeconfig has a client certificate for its user."""
    return any(field.startswith("client-certificate") for field in login)


def _none(why: str) -> CommandFailed:
    return CommandFailed(f"{why}: {_HOW_TO_CREATE}", Exit.NOT_ALLOWED)


def checked_token(text: str, source: str) -> str:
    """The token in a text. Raises CommandFailed, which names only the source, where the text is no token."""
    token = text.strip()
    if not _TOKEN.fullmatch(token):
        what = "holds characters that no token has" if token else "is empty"
        raise CommandFailed(f"{source} {what}", Exit.BAD_INPUT)
    return token


# ---- exec plugins (client.authentication.k8s.io)


def of_plugin(context: KubeconfigContext) -> Mapping[str, Any]:
    """Credentials from the exec plugin: ``token``, or ``clientCertificateData`` with ``clientKeyData``, as PEM.

    The plugin's questions and errors are shown on the terminal, as with kubectl. Empty where the user has no plugin.

    Raises:
        CommandFailed: the plugin cannot be run, or prints no credentials.
    """
    plugin = context.login.get("exec")
    if not isinstance(plugin, dict):
        return {}
    version, program = str(plugin.get("apiVersion") or ""), str(plugin.get("command") or "")
    if not version.startswith(_EXEC_GROUP) or not program:
        raise CommandFailed(
            f"the plugin of user {context.user!r} is not of {_EXEC_GROUP}v1", Exit.BAD_INPUT
        )
    if "/" in program:
        program = str(context.folder / program)
    interactive = plugin.get("interactiveMode") != "Never" and os.isatty(0)
    try:
        process = subprocess.run(  # noqa: S603 - the kubeconfig is the user's own
            [program, *(str(part) for part in plugin.get("args") or ())],
            env=_environment(plugin, context, version, interactive=interactive),
            stdin=None if interactive else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=PLUGIN_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CommandFailed(f"{program} printed no token within {PLUGIN_SECONDS:.0f} s") from None
    except OSError as error:
        hint = str(plugin.get("installHint") or "").strip()
        raise CommandFailed(
            f"{program}: {error.strerror}" + (f"\n{hint}" if hint else "")
        ) from error
    if process.returncode:
        raise CommandFailed(f"{program} failed with exit code {process.returncode}")
    return _status_in(process.stdout, program, version)


def _environment(
    plugin: Mapping[str, Any], context: KubeconfigContext, version: str, *, interactive: bool
) -> dict[str, str]:
    given = {str(one["name"]): str(one["value"]) for one in plugin.get("env") or ()}
    spec: dict[str, Any] = {"interactive": interactive}
    if plugin.get("provideClusterInfo"):
        spec["cluster"] = dict(context.cluster)
    info = {"apiVersion": version, "kind": "ExecCredential", "spec": spec}
    return {**os.environ, **given, "KUBERNETES_EXEC_INFO": json.dumps(info)}


def _status_in(printed: bytes, program: str, version: str) -> Mapping[str, Any]:
    """The credentials in the output. Messages quote none of it: it can hold a token."""
    try:
        document = json.loads(printed)
    except ValueError:
        document = None
    if not isinstance(document, dict) or document.get("kind") != "ExecCredential":
        raise CommandFailed(f"{program} printed no ExecCredential")
    if document.get("apiVersion") != version:
        raise CommandFailed(f"{program} printed another version than {version}")
    status = document.get("status")
    given = status if isinstance(status, dict) else {}
    if not (given.get("token") or given.get("clientCertificateData")):
        raise _none(f"{program} printed no token")
    return given
