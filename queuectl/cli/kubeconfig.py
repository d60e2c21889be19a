"""The part of a kubeconfig that a client of queuectl's API needs: the user, the cluster and the namespace.

This module imports no Kubernetes client, which takes two seconds to import.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from queuectl.cli.errors import CommandFailed, Exit

_DEFAULT: Final = Path("~/.kube/config")


@dataclass(frozen=True, slots=True)
class Context:
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


def current(files: str | None = None, context: str | None = None) -> Context | None:
    """The context in use, or None where there is no kubeconfig.

    Args:
        files: paths as in ``$KUBECONFIG``; None = those of ``$KUBECONFIG``, else ``~/.kube/config``.
        context: name of the context; None = the current context.

    Raises:
        CommandFailed: a file cannot be read, or has no such context.
    """
    named = files or os.environ.get("KUBECONFIG") or str(_DEFAULT)
    found = [(path, _read(path)) for path in _existing(named)]
    if not found:
        if files is None and context is None:
            return None
        raise CommandFailed(f"kubeconfig {named}: not found", Exit.BAD_INPUT)
    wanted = context or next((str(c) for _, d in found if (c := d.get("current-context"))), None)
    if wanted is None:
        return None
    entry, _ = _entry(found, "contexts", "context", wanted)
    if entry is None:
        raise CommandFailed(f"kubeconfig {named}: context {wanted!r} not found", Exit.BAD_INPUT)
    user = str(entry.get("user") or "")
    login, user_file = _entry(found, "users", "user", user)
    cluster, cluster_file = _entry(found, "clusters", "cluster", str(entry.get("cluster") or ""))
    namespace = entry.get("namespace")
    return Context(
        name=wanted,
        namespace=str(namespace) if namespace else None,
        user=user,
        login=login or {},
        cluster=cluster or {},
        folder=(user_file or found[0][0]).parent,
        cluster_file=cluster_file or found[0][0],
    )


def _existing(files: str) -> Iterator[Path]:
    for part in files.split(os.pathsep):
        path = Path(part).expanduser()
        if part and path.exists():
            yield path.absolute()


def _read(path: Path) -> dict[str, Any]:
    """The content of a file. Error messages quote none of it: it can hold secrets."""
    import yaml

    try:
        document = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise CommandFailed(f"kubeconfig {path}: {error.strerror}", Exit.BAD_INPUT) from error
    except yaml.YAMLError:
        raise CommandFailed(f"kubeconfig {path}: not valid YAML", Exit.BAD_INPUT) from None
    if not isinstance(document, dict):
        raise CommandFailed(f"kubeconfig {path}: not a kubeconfig", Exit.BAD_INPUT)
    return document


def _entry(
    found: list[tuple[Path, dict[str, Any]]], plural: str, singular: str, name: str
) -> tuple[Mapping[str, Any] | None, Path | None]:
    """The first entry of this name in the files, as kubectl merges them, and its file."""
    for path, document in found:
        for item in document.get(plural) or ():
            if isinstance(item, dict) and item.get("name") == name:
                body = item.get(singular)
                return (body if isinstance(body, dict) else {}), path
    return None, None
