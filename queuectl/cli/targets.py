"""Configuration that a command line means: documents of files, and objects by name."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from queuectl.api.kinds import BY_KIND, ONLY_NAME, ConfigKind
from queuectl.cli.client import Json, config_kind, config_path
from queuectl.cli.errors import CommandFailed, Exit
from queuectl.domain.errors import BadInput
from queuectl.objects.documents import Document, read_documents

ORDER: Final = (
    "Configuration",
    "Topology",
    "ResourceFlavor",
    "WorkloadPriorityClass",
    "Cohort",
    "ClusterQueue",
    "QuotaOverride",
    "LocalQueue",
)
"""Kinds in an order in which nothing refers to what comes later."""


@dataclass(frozen=True, slots=True)
class Target:
    """One object. ``namespace`` is "" where the kind has none."""

    kind: ConfigKind
    name: str
    namespace: str

    @classmethod
    def of(cls, body: Mapping[str, Any], namespace: str) -> Target:
        """The object that a document of a known kind describes; in this namespace if it names none."""
        kind, metadata = BY_KIND[body["kind"]], body.get("metadata") or {}
        name = str(metadata.get("name") or (ONLY_NAME if kind.single else ""))
        where = str(metadata.get("namespace") or namespace)
        return cls(kind, name, where if kind.namespaced else "")

    @property
    def path(self) -> str:
        """Of the REST API."""
        return config_path(self.kind, self.name, self.namespace)

    @property
    def key(self) -> Json:
        """As ``POST plans`` names what is deleted."""
        return {
            "kind": self.kind.kind,
            "name": self.name,
            "namespace": self.namespace or None,
        }

    def __str__(self) -> str:
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.kind.singular}/{self.name}{where}"


def placed(body: Json, namespace: str) -> Json:
    """A document of an object that has a namespace: this one, if it names none."""
    metadata = body.get("metadata") or {}
    return {**body, "metadata": {**metadata, "namespace": metadata.get("namespace") or namespace}}


def addressed(document: Document, namespace: str) -> Json:
    """A document of configuration as it would be put."""
    return placed(document.body, namespace) if BY_KIND[document.kind].namespaced else document.body


def read(file: str) -> list[Document]:
    """The documents of a file; ``-`` is stdin. Raises BadInput, or CommandFailed."""
    try:
        content = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise CommandFailed(f"{file}: {error.strerror}", Exit.BAD_INPUT) from error
    return read_documents(content, "stdin" if file == "-" else file)


def is_configuration(document: Document) -> bool:
    """Whether it is of a kind and a version that we read as configuration."""
    kind = BY_KIND.get(document.kind)
    return kind is not None and document.api_version in kind.versions


def check(documents: Iterable[Document]) -> None:
    """Refuse what could not even be addressed, all of it at once. Raises BadInput."""
    mistakes = []
    for document in documents:
        if not is_configuration(document):
            kinds = ", ".join(BY_KIND)
            found = f"{document.api_version} {document.kind}"
            mistakes.append(document.error("kind", f"{found} is no configuration; that is {kinds}"))
        elif not Target.of(document.body, "").name:
            mistakes.append(document.error("metadata.name", "is required"))
    if mistakes:
        raise BadInput("\nerror: ".join(str(mistake) for mistake in mistakes))


def target_kind(word: str, otherwise: str) -> ConfigKind:
    """The kind of configuration that somebody typed.

    Args:
        word: what was typed.
        otherwise: what to do about a workload.

    Raises:
        CommandFailed: it is none.
    """
    kind = config_kind(word)
    if kind is None:
        raise CommandFailed(f"a workload is no configuration: {otherwise}", Exit.BAD_INPUT)
    return kind
