"""What a kubeconfig says of its user and of the namespace: as much of it as a client of queuectl's API needs.

No Kubernetes client in here: reading one YAML file must not cost the start of a program two seconds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from queuectl.cli.errors import CommandFailed, Exit

_USUAL: Final = Path("~/.kube/config")


@dataclass(frozen=True, slots=True)
class Context:
    """Who talks to which cluster.

    Attributes:
        name: of the context.
        namespace: that it names; None = it names none.
        user: name of the user.
        login: how the user proves who he is, as the file says it.
        cluster: of the API server, as the file says it.
        folder: from where the user's relative paths start.
        cluster_file: where the cluster is; its relative paths start from there.
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
        files: paths as in ``$KUBECONFIG``; None = those of ``$KUBECONFIG``, else the usual one.
        context: its name; None = the current one.

    Raises:
        CommandFailed: a file cannot be read, or the context is not in them.
    """
    named = files or os.environ.get("KUBECONFIG") or str(_USUAL)
    found = [(path, _read(path)) for path in _existing(named)]
    if not found:
        if files is None and context is None:
            return None
        raise CommandFailed(f"there is no kubeconfig {named}", Exit.BAD_INPUT)
    wanted = context or next((str(c) for _, d in found if (c := d.get("current-context"))), None)
    if wanted is None:
        return None
    entry, _ = _entry(found, "contexts", "context", wanted)
    if entry is None:
        raise CommandFailed(f"kubeconfig {named} has no context {wanted!r}", Exit.BAD_INPUT)
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
    """A file. What is wrong with it is said without a line of it: it may hold secrets."""
    import yaml

    try:
        document = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise CommandFailed(f"kubeconfig {path}: {error.strerror}", Exit.BAD_INPUT) from error
    except yaml.YAMLError:
        raise CommandFailed(f"kubeconfig {path}: is no YAML", Exit.BAD_INPUT) from None
    if not isinstance(document, dict):
        raise CommandFailed(f"kubeconfig {path}: is no kubeconfig", Exit.BAD_INPUT)
    return document


def _entry(
    found: list[tuple[Path, dict[str, Any]]], plural: str, singular: str, name: str
) -> tuple[Mapping[str, Any] | None, Path | None]:
    """The first of this name in any of the files, as kubectl merges them, and the file it is in."""
    for path, document in found:
        for item in document.get(plural) or ():
            if isinstance(item, dict) and item.get("name") == name:
                body = item.get(singular)
                return (body if isinstance(body, dict) else {}), path
    return None, None
