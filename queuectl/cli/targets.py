"""The objects that a command line names: documents of files, and configuration objects by name.

Documents that a command ignores become lines for people.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from queuectl.cli.client import Json, config_kind, config_path
from queuectl.cli.errors import CommandFailed, Exit, exit_code
from queuectl.cli.options import files_option
from queuectl.client.errors import RequestRefused
from queuectl.domain.errors import BadInput
from queuectl.domain.words import counted
from queuectl.objects.configuration.config_kinds import BY_KIND, ONLY_NAME, ConfigKind
from queuectl.objects.documents import Document, read_documents
from queuectl.objects.errors import DocumentError
from queuectl.objects.files.unread import why_unread
from queuectl.objects.kinds import KINDS, JobKinds, with_declared
from queuectl.objects.kinds.declared import read_kinds

# ---- Configuration objects

Files = Annotated[
    list[str],
    files_option(", or a directory of them"),
]
ObjectNamespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        metavar="NAME",
        help="Namespace of objects without one. Default: that of the kubeconfig's context, or of the pod without a kubeconfig.",
    ),
]
ORDER: Final = (
    "Configuration",
    "Topology",
    "ResourceFlavor",
    "ProvisioningRequestConfig",
    "AdmissionCheck",
    "WorkloadPriorityClass",
    "Cohort",
    "ClusterQueue",
    "QuotaOverride",
    "Reservation",
    "LocalQueue",
    "Budget",
    "BudgetTopUp",
)
"""Kinds in an order in which an object refers only to earlier ones."""


@dataclass(frozen=True, slots=True)
class Target:
    """One object. ``namespace`` is empty for a kind without namespaces."""

    kind: ConfigKind
    name: str
    namespace: str

    @classmethod
    def of(cls, body: Mapping[str, Any], namespace: str) -> Target:
        """The object of a document of a known kind. ``namespace``: the default for a document without one."""
        kind, metadata = BY_KIND[body["kind"]], body.get("metadata") or {}
        name = str(metadata.get("name") or (ONLY_NAME if kind.single else ""))
        where = str(metadata.get("namespace") or namespace)
        return cls(kind, name, where if kind.namespaced else "")

    @property
    def path(self) -> str:
        """Its path in the REST API."""
        return config_path(self.kind, self.name, self.namespace)

    @property
    def key(self) -> Json:
        """The object in the form of ``POST plans``."""
        return {
            "kind": self.kind.kind,
            "name": self.name,
            "namespace": self.namespace or None,
        }

    def __str__(self) -> str:
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.kind.singular}/{self.name}{where}"


def refused(target: Target | str, refusal: RequestRefused) -> Exit:
    """Print why one of several objects is refused. Returns the exit code."""
    typer.echo(f"error: {target}: {refusal}", err=True)
    return exit_code(refusal)


def placed(body: Json, namespace: str) -> Json:
    """The document with a namespace. ``namespace``: the default."""
    metadata = body.get("metadata") or {}
    return {**body, "metadata": {**metadata, "namespace": metadata.get("namespace") or namespace}}


def addressed(document: Document, namespace: str) -> Json:
    """A configuration document in the form in which it is sent."""
    return placed(document.body, namespace) if BY_KIND[document.kind].namespaced else document.body


def is_configuration(document: Document) -> bool:
    """Whether the document has a kind and a version of configuration."""
    kind = BY_KIND.get(document.kind)
    return kind is not None and document.api_version in kind.versions


def check(documents: Sequence[Document]) -> None:
    """Refuse an input without documents, and documents of other kinds or without a name, all in one message. Raises BadInput."""
    mistakes = []
    if not documents:
        raise BadInput("the input has no objects")
    for document in documents:
        if not is_configuration(document):
            mistakes.append(_not_configuration(document))
        elif not Target.of(document.body, "").name:
            mistakes.append(document.error("metadata.name", "is required"))
    if mistakes:
        raise BadInput("\nerror: ".join(str(mistake) for mistake in mistakes))


def _not_configuration(document: Document) -> DocumentError:
    if document.kind in BY_KIND:
        return document.error("", why_unread(document))
    found, kinds = f"{document.api_version} {document.kind}", ", ".join(BY_KIND)
    if document.kind in KINDS or document.kind == "Pod":
        return document.error(
            "kind", f"{found} is not configuration; submit it with `kubectl create -f FILE`"
        )
    return document.error("kind", f"{found} is not configuration; the kinds are {kinds}")


def target_kind(word: str, otherwise: str) -> ConfigKind:
    """The configuration kind of a word.

    Args:
        word: the kind as the user typed it.
        otherwise: what to do with a workload, for the message.

    Raises:
        CommandFailed: it is not a configuration kind.
    """
    kind = config_kind(word)
    if kind is None:
        raise CommandFailed(f"a workload is not configuration: {otherwise}", Exit.BAD_INPUT)
    return kind


# ---- Documents of files


_SUFFIXES: Final = (".json", ".yaml", ".yml")


def read_objects(names: Iterable[str]) -> list[Document]:
    """The documents of YAML and JSON files; ``-`` is stdin, and a directory is its files with these suffixes, by name.

    Raises:
        BadInput: naming the file or the directory.
    """
    return [document for name in names for document in _of_one(name)]


def _of_one(name: str) -> Iterator[Document]:
    if name == "-":
        if sys.stdin is None:
            raise BadInput("stdin: is closed")
        yield from read_documents(sys.stdin.buffer.read(), "stdin")
        return
    if not Path(name).is_dir():
        yield from read_documents(read_bytes(name), name)
        return
    try:
        files = sorted(file for file in Path(name).iterdir() if file.suffix in _SUFFIXES)
    except OSError as error:
        raise BadInput(f"{name}: {error.strerror or error}") from None
    if not files:
        raise BadInput(f"{name}: has no file that ends with {', '.join(_SUFFIXES)}")
    for file in files:
        yield from read_documents(read_bytes(str(file)), str(file))


def declared_kinds(path: Path | None) -> JobKinds:
    """The job kinds, with those that a file declares.

    Raises:
        BadInput: naming the file, the kind and the field.
    """
    return KINDS if path is None else with_declared(read_kinds(read_bytes(str(path)), str(path)))


def read_bytes(name: str) -> bytes:
    """The content of a file.

    Raises:
        BadInput: naming the file.
    """
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise BadInput(f"{name}: {error.strerror or error}") from None


_MOST_REASONS: Final = 20
"""Reasons that are shown. The JSON output has all."""


def ignored_lines(ignored: Iterable[Mapping[str, str]]) -> Iterator[str]:
    """A line for each reason, with its first document and the number of the others; the most frequent reasons first.

    Args:
        ignored: ``object`` and ``reason`` of each document.
    """
    by_reason: dict[str, list[str]] = {}
    for each in ignored:
        by_reason.setdefault(each["reason"], []).append(each["object"])
    ranked = sorted(by_reason.items(), key=lambda entry: -len(entry[1]))
    for reason, objects in ranked[:_MOST_REASONS]:
        others = f" and {len(objects) - 1} more" if objects[1:] else ""
        yield f"ignored: {objects[0]}{others}: {reason}"
    if rest := ranked[_MOST_REASONS:]:
        count = sum(len(objects) for _, objects in rest)
        more, others = counted(count, "more document"), counted(len(rest), "other reason")
        yield f"ignored: {more} for {others}; -o json lists all"
