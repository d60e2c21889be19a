"""The kubeconfig: its current context, and the faults of it for which clients have no clear error.

This module imports no Kubernetes client, which takes two seconds to import. Messages quote no value of a file: it can hold secrets.
"""

from __future__ import annotations

import binascii
import os
import shutil
from base64 import b64decode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from queuectl.domain.errors import BadInput

DEFAULT: Final = "~/.kube/config"

ANOTHER_FILE: Final = "set KUBECONFIG to another file"
_NEW_FILE: Final = "get a new kubeconfig for the cluster, or set KUBECONFIG to another file"


@dataclass(frozen=True, slots=True)
class KubeconfigContext:
    """A context, with its user and its cluster.

    Attributes:
        name: name of the context.
        namespace: namespace of the context; None = it has none.
        user: name of the user.
        login: credentials of the user, as in the file.
        cluster: the cluster, as in the file.
        folder: folder of the user's relative paths.
        cluster_file: file with the cluster, whose relative paths start in its folder.
    """

    name: str
    namespace: str | None
    user: str
    login: Mapping[str, Any] = field(repr=False)  # it may hold a token
    cluster: Mapping[str, Any] = field(repr=False)
    folder: Path
    cluster_file: Path


def current_context(
    files: str | None = None, context: str | None = None
) -> KubeconfigContext | None:
    """The current context; None without a kubeconfig.

    Args:
        files: paths as in ``$KUBECONFIG``; None = those of ``$KUBECONFIG``, else ``~/.kube/config``.
        context: name of the context; None = the current context.

    Raises:
        BadInput: a file cannot be read or is not a kubeconfig, or it has no such context.
    """
    named = files or os.environ.get("KUBECONFIG") or DEFAULT
    kubeconfigs = [(path, _read(path)) for path in _existing(named)]
    if not kubeconfigs:
        if files is None and context is None:
            return None
        raise BadInput(f"kubeconfig {named}: not found: {ANOTHER_FILE}")
    context_name = context or next(
        (str(c) for _, d in kubeconfigs if (c := d.get("current-context"))), None
    )
    if context_name is None:
        return None
    entry, _ = _entry(kubeconfigs, "contexts", "context", context_name)
    if entry is None:
        raise BadInput(
            f"kubeconfig {named}: context {context_name!r} not found: `kubectl config get-contexts` lists the contexts"
        )
    user = str(entry.get("user") or "")
    login, user_file = _entry(kubeconfigs, "users", "user", user)
    cluster, cluster_file = _entry(
        kubeconfigs, "clusters", "cluster", str(entry.get("cluster") or "")
    )
    namespace = entry.get("namespace")
    return KubeconfigContext(
        name=context_name,
        namespace=str(namespace) if namespace else None,
        user=user,
        login=login or {},
        cluster=cluster or {},
        folder=(user_file or kubeconfigs[0][0]).parent,
        cluster_file=cluster_file or kubeconfigs[0][0],
    )


def missing_files() -> str | None:
    """The value of ``$KUBECONFIG`` if none of its files exists; None if it is empty, or one exists."""
    named = os.environ.get("KUBECONFIG")
    return named if named and not any(_existing(named)) else None


def expanded(path: str | Path) -> Path:
    """A path with the home directory for ``~``; unchanged if the user has none, as in a container with a random uid."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def _existing(files: str) -> Iterator[Path]:
    for part in files.split(os.pathsep):
        path = expanded(part)
        if part and path.exists():
            yield path.absolute()


def _read(path: Path) -> dict[str, Any]:
    """The content of a file. Error messages quote none of it: it can hold secrets."""
    import yaml

    try:
        document = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise BadInput(f"kubeconfig {path}: {error.strerror}: {ANOTHER_FILE}") from error
    except yaml.YAMLError:
        raise BadInput(f"kubeconfig {path}: not valid YAML: {ANOTHER_FILE}") from None
    if not isinstance(document, dict):
        raise BadInput(f"kubeconfig {path}: not a kubeconfig: {ANOTHER_FILE}")
    return document


def _entry(
    kubeconfigs: list[tuple[Path, dict[str, Any]]], plural: str, singular: str, name: str
) -> tuple[Mapping[str, Any] | None, Path | None]:
    """The first entry of this name in the files, as kubectl merges them, and its file."""
    for path, document in kubeconfigs:
        for item in document.get(plural) or ():
            if isinstance(item, dict) and item.get("name") == name:
                body = item.get(singular)
                return (body if isinstance(body, dict) else {}), path
    return None, None


def check(context: KubeconfigContext) -> None:
    """Check that a client can use a context.

    Raises:
        BadInput: it cannot; the message names the file, the field, and what to do.
    """
    where = f"kubeconfig {context.cluster_file}, context {context.name!r}"
    problem = next(chain(_problems_of_cluster(context), _problems_of_user(context)), None)
    if problem is not None:
        raise BadInput(f"{where}: {problem}")


def _problems_of_cluster(context: KubeconfigContext) -> Iterator[str]:
    cluster, folder = context.cluster, context.cluster_file.parent
    if not cluster:
        yield f"the file has no cluster for this context: {_NEW_FILE}"
        return
    server = cluster.get("server")
    if not isinstance(server, str) or not _address(server):
        yield f"clusters[].cluster.server: not the URL of a server: {_NEW_FILE}"
    yield from _problems_of_files(cluster, folder, "cluster", "certificate-authority")


def _problems_of_user(context: KubeconfigContext) -> Iterator[str]:
    login = context.login
    if context.user and not login:
        yield f"the file has no credentials for user {context.user!r}: {_NEW_FILE}"
    for name in ("token", "username", "password"):
        if not isinstance(login.get(name, ""), str):
            yield f"users[].user.{name}: not a text: {_NEW_FILE}"
    yield from _problems_of_files(
        login, context.folder, "user", "client-certificate", "client-key", "tokenFile"
    )
    plugin = login.get("exec")
    if plugin is None:
        return
    command = plugin.get("command") if isinstance(plugin, dict) else None
    if not isinstance(command, str) or not command:
        yield f"users[].user.exec.command: not the name of a program: {_NEW_FILE}"
    elif shutil.which(str(context.folder / command) if "/" in command else command) is None:
        hint = " ".join(str(plugin.get("installHint") or "").split())
        yield f"users[].user.exec: the program {command!r} is not installed: {hint or 'install it'}"


def _problems_of_files(
    entry: Mapping[str, Any], folder: Path, kind: str, *names: str
) -> Iterator[str]:
    """Faults of fields that are in the kubeconfig (``-data``, which has precedence) or name a file."""
    for name in names:
        text = entry.get(f"{name}-data")
        if text:
            try:
                b64decode("".join(text.split()), validate=True)
            except (binascii.Error, AttributeError, ValueError):
                yield f"{kind}s[].{kind}.{name}-data: not base64: {_NEW_FILE}"
        elif (path := entry.get(name)) and not (
            isinstance(path, str) and (folder / path).is_file()
        ):
            yield f"{kind}s[].{kind}.{name}: the file does not exist: {_NEW_FILE}"


def _address(server: str) -> bool:
    try:
        parts = urlsplit(server)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)
