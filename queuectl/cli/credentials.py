"""The token a command shows: from a file, or from the kubeconfig people have.

It is shown when the server asks who we are, not before: one that asks nobody needs none, and a plugin that fetches tokens may
take seconds or open a browser. A token never goes over the network unencrypted, and never into a message.
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
from queuectl.cli.kubeconfig import Context

PLUGIN_SECONDS: Final = 120.0  # it may ask a person to sign in
_EXEC_GROUP: Final = "client.authentication.k8s.io/"
_TOKEN: Final = re.compile(r"[!-~]+")
_MAKE_ONE: Final = "make one with `kubectl create token SERVICEACCOUNT -n NAMESPACE > token`, and give it by --token-file token"
_ACT_AS: Final = "name a service account with rights by --as-serviceaccount NAMESPACE/NAME"

Finder = Callable[[], str]


class TokenAuth(httpx2.Auth):
    """Shows the token once the server has asked who we are, and a fresh one when it is taken no longer."""

    def __init__(self, find: Finder) -> None:
        """``find`` raises CommandFailed when there is no token."""
        self._find = find
        self._token: str | None = None

    def auth_flow(
        self, request: httpx2.Request
    ) -> Generator[httpx2.Request, httpx2.Response, None]:
        """One request, sent again with a token if it must be."""
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
    """Whether this is the machine we are on."""
    try:
        return host == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def only_encrypted(url: httpx2.URL) -> None:
    """Raises CommandFailed where a token would cross a network as it is."""
    if url.scheme != "https" and not loopback(url.host):
        raise CommandFailed(
            f"{url.host} asks who you are, and the token would go there unencrypted: give an https:// address, "
            "or reach it by `kubectl port-forward`",
            Exit.NOT_ALLOWED,
        )


def from_file(path: Path) -> str:
    """The token a file holds.

    Raises:
        CommandFailed: it cannot be read, or holds none.
    """
    try:
        content = path.expanduser().read_text(errors="replace")
    except OSError as error:
        raise CommandFailed(f"token file {path}: {error.strerror}", Exit.BAD_INPUT) from error
    return sound(content, f"token file {path}")


def of_context(context: Context | None) -> str:
    """The token of a kubeconfig's user.

    Raises:
        CommandFailed: he has none; it says how to get one.
    """
    if context is None:
        raise _none("the server asks who you are, and there is no kubeconfig")
    login = context.login
    whose = f"user {context.user!r} of the kubeconfig's context {context.name!r}"
    if login.get("tokenFile"):  # kubectl, too, lets it go before token
        return from_file(context.folder / str(login["tokenFile"]))
    if login.get("token"):
        return sound(str(login["token"]), f"the token of {whose}")
    given = of_plugin(context)
    if given.get("token"):
        return sound(str(given["token"]), f"what the plugin of {whose} printed")
    if has_certificate(login) or given.get("clientCertificateData"):
        why = f"{whose} proves himself by a client certificate, which only the API server can check"
        raise CommandFailed(f"{why}: {_ACT_AS}, or {_MAKE_ONE}", Exit.NOT_ALLOWED)
    raise _none(f"the server asks who you are, and {whose} has no token")


def has_certificate(login: Mapping[str, Any]) -> bool:
    """Whether the kubeconfig itself names a client certificate of its user."""
    return any(field.startswith("client-certificate") for field in login)


def _none(why: str) -> CommandFailed:
    return CommandFailed(f"{why}: {_MAKE_ONE}", Exit.NOT_ALLOWED)


def sound(text: str, source: str) -> str:
    """The token of a text. Raises CommandFailed where it is none, naming the source alone."""
    token = text.strip()
    if not _TOKEN.fullmatch(token):
        what = "is more than one word" if token else "is empty"
        raise CommandFailed(f"{source} {what}: a token is one", Exit.BAD_INPUT)
    return token


# ---- exec plugins (client.authentication.k8s.io)


def of_plugin(context: Context) -> Mapping[str, Any]:
    """What the plugin of a kubeconfig's user gives: ``token``, or ``clientCertificateData`` with ``clientKeyData``, as PEM.

    Its own questions and complaints go to the terminal, as with kubectl. Nothing where the user has no plugin.

    Raises:
        CommandFailed: it gives neither, or cannot be run.
    """
    plugin = context.login.get("exec")
    if not isinstance(plugin, dict):
        return {}
    version, program = str(plugin.get("apiVersion") or ""), str(plugin.get("command") or "")
    if not version.startswith(_EXEC_GROUP) or not program:
        raise CommandFailed(
            f"the plugin of user {context.user!r} is none of {_EXEC_GROUP}v1", Exit.BAD_INPUT
        )
    if "/" in program:
        program = str(context.folder / program)
    interactive = plugin.get("interactiveMode") != "Never" and os.isatty(0)
    try:
        done = subprocess.run(  # noqa: S603 - the kubeconfig is the user's own
            [program, *(str(part) for part in plugin.get("args") or ())],
            env=_environment(plugin, context, version, interactive=interactive),
            stdin=None if interactive else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=PLUGIN_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CommandFailed(f"{program} gave no token in {PLUGIN_SECONDS:.0f} s") from None
    except OSError as error:
        hint = str(plugin.get("installHint") or "").strip()
        raise CommandFailed(
            f"{program}: {error.strerror}" + (f"\n{hint}" if hint else "")
        ) from error
    if done.returncode:
        raise CommandFailed(f"{program} gave no token: it ended with status {done.returncode}")
    return _status_in(done.stdout, program, version)


def _environment(
    plugin: Mapping[str, Any], context: Context, version: str, *, interactive: bool
) -> dict[str, str]:
    given = {str(one["name"]): str(one["value"]) for one in plugin.get("env") or ()}
    spec: dict[str, Any] = {"interactive": interactive}
    if plugin.get("provideClusterInfo"):
        spec["cluster"] = dict(context.cluster)
    info = {"apiVersion": version, "kind": "ExecCredential", "spec": spec}
    return {**os.environ, **given, "KUBERNETES_EXEC_INFO": json.dumps(info)}


def _status_in(printed: bytes, program: str, version: str) -> Mapping[str, Any]:
    """Nothing of what was printed is told: a token may be in it."""
    try:
        document = json.loads(printed)
    except ValueError:
        document = None
    if not isinstance(document, dict) or document.get("kind") != "ExecCredential":
        raise CommandFailed(f"{program} printed no ExecCredential")
    if document.get("apiVersion") != version:
        raise CommandFailed(f"{program} answered in another version than {version}")
    status = document.get("status")
    given = status if isinstance(status, dict) else {}
    if not (given.get("token") or given.get("clientCertificateData")):
        raise _none(f"{program} gave no token")
    return given
