"""The bearer token of a client: from a file, from the kubeconfig, or from the pod in which it runs.

A client sends a token only after the server has answered 401: a server without authentication needs none, and an exec plugin
can take seconds or open a browser. A token is never sent unencrypted to another machine, and never part of a message.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from queuectl.client.errors import InvalidOption, NoCredentials, TokenNotIssued
from queuectl.kubeconfig import KubeconfigContext, expanded

# ---- Bearer tokens

PLUGIN_SECONDS: Final = 120.0  # a plugin can ask the user to sign in
_EXEC_GROUP: Final = "client.authentication.k8s.io/"
_TOKEN: Final = re.compile(r"[!-~]+")
HOW_TO_CREATE: Final = "create a token with `kubectl create token SERVICEACCOUNT -n NAMESPACE > token`, and give it with --token-file token"
_ACT_AS: Final = "act as a ServiceAccount with --as-serviceaccount NAMESPACE/NAME"

Finder = Callable[[], str]


class Login:
    """The token of a client. It is found when the server asks for one, and again when the server refuses it or its file changes."""

    def __init__(self, find: Finder, file: Path | None = None) -> None:
        """``find`` raises a ClientError if it finds no token. ``file``: the file from which it reads; None = another source."""
        self._find = find
        self._file = file
        self._stamp: object = None
        self._token: str | None = None

    def headers(self) -> dict[str, str]:
        """The headers of the next request. Can raise what ``find`` raises, for a file that has changed."""
        if self._token is not None and self._file is not None and self._stamp != _stamp(self._file):
            self._read()
        return {"Authorization": f"Bearer {self._token}"} if self._token is not None else {}

    def renew(self, address: str) -> bool:
        """After the answer 401: whether there is another token. Raises what ``find`` raises, and NoCredentials for plain HTTP."""
        only_encrypted(address)
        refused = self._token
        self._read()
        return self._token != refused

    def _read(self) -> None:
        self._stamp = _stamp(self._file) if self._file is not None else None
        self._token = self._find()


def _stamp(file: Path) -> object:
    """A value that changes with the file; a volume of Kubernetes replaces the file by a link."""
    try:
        found = expanded(file).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def loopback(host: str) -> bool:
    """Whether the host is this machine."""
    try:
        return host == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def only_encrypted(address: str) -> None:
    """Raises NoCredentials where a token would be sent unencrypted over a network."""
    url = urlsplit(address)
    if url.scheme != "https" and not loopback(url.hostname or ""):
        raise NoCredentials(
            f"{url.hostname} requires a token, which http:// would send unencrypted: give an https:// address"
        )


def from_file(path: Path) -> str:
    """The token in a file.

    Raises:
        ClientError: the file cannot be read, or holds no token.
    """
    try:
        content = expanded(path).read_text(errors="replace")
    except OSError as error:
        raise InvalidOption(f"token file {path}: {error.strerror}") from error
    return checked_token(content, f"token file {path}")


def of_context(context: KubeconfigContext | None) -> str:
    """The token of the kubeconfig's user.

    Raises:
        ClientError: the user has no token; the message names the ways to get one.
    """
    if context is None:
        raise _none("the server requires a token, and no kubeconfig exists")
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
        raise NoCredentials(f"{why}: {_ACT_AS}, or {HOW_TO_CREATE}")
    raise _none(f"the server requires a token, and {whose} has none")


def has_certificate(login: Mapping[str, Any]) -> bool:
    """Whether the kubeconfig has a client certificate for its user."""
    return any(field.startswith("client-certificate") for field in login)


def _none(why: str) -> NoCredentials:
    return NoCredentials(f"{why}: {HOW_TO_CREATE}")


def checked_token(text: str, source: str) -> str:
    """The token in a text. Raises ClientError, which names only the source, where the text is not a token."""
    token = text.strip()
    if not _TOKEN.fullmatch(token):
        what = "holds characters that no token has" if token else "is empty"
        raise InvalidOption(f"{source} {what}")
    return token


# ---- exec plugins (client.authentication.k8s.io)


def of_plugin(context: KubeconfigContext) -> Mapping[str, Any]:
    """Credentials from the exec plugin: ``token``, or ``clientCertificateData`` with ``clientKeyData``, as PEM.

    The plugin's questions and errors are shown on the terminal, as with kubectl. Empty where the user has no plugin.

    Raises:
        ClientError: the plugin cannot be run, or prints no credentials.
    """
    plugin = context.login.get("exec")
    if not isinstance(plugin, dict):
        return {}
    version, program = str(plugin.get("apiVersion") or ""), str(plugin.get("command") or "")
    if not version.startswith(_EXEC_GROUP) or not program:
        raise InvalidOption(f"the plugin of user {context.user!r} is not of {_EXEC_GROUP}v1")
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
        raise TokenNotIssued(f"{program} printed no token within {PLUGIN_SECONDS:.0f} s") from None
    except OSError as error:
        hint = str(plugin.get("installHint") or "").strip()
        raise TokenNotIssued(
            f"{program}: {error.strerror}" + (f"\n{hint}" if hint else "")
        ) from error
    if process.returncode:
        raise TokenNotIssued(f"{program} failed with exit code {process.returncode}")
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
        raise TokenNotIssued(f"{program} printed no ExecCredential")
    if document.get("apiVersion") != version:
        raise TokenNotIssued(f"{program} printed another version than {version}")
    status = document.get("status")
    given = status if isinstance(status, dict) else {}
    if not (given.get("token") or given.get("clientCertificateData")):
        raise _none(f"{program} printed no token")
    return given
