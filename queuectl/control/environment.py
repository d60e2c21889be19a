"""Environment variables with the prefix of queuectl that no code reads, so that a misspelled setting is an error.

pydantic checks the values of the names that it knows. This module checks the names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Final

from pydantic import BaseModel

from queuectl.control.settings import Settings

PREFIX: Final = "QUEUECTL_"

PLAIN_VARIABLES: Final = MappingProxyType(
    {
        "QUEUECTL_API_DATABASE_PASSWORD_FILE": "queuectl.db.engine",
        "QUEUECTL_DATABASE_PASSWORD_FILE": "queuectl.db.engine",
        "QUEUECTL_DATABASE_DIRECT_URL": "queuectl.db.engine",
        "QUEUECTL_DATABASE_PGBOUNCER": "queuectl.db.engine",
        "QUEUECTL_PG_BIN": "queuectl.db.binaries",
        "QUEUECTL_CACHE": "queuectl.localcluster.cache",
        "QUEUECTL_AUDIT_LOGS": "queuectl.localcluster.layout",
        "QUEUECTL_SERVER": "queuectl.cli.client",
        "QUEUECTL_TOKEN_FILE": "queuectl.cli.connection",
        "QUEUECTL_AS_SERVICEACCOUNT": "queuectl.cli.connection",
        "QUEUECTL_CA_FILE": "queuectl.cli.connection",
        "QUEUECTL_TLS_SERVER_NAME": "queuectl.cli.connection",
    }
)
"""Variables that are no Settings, and the module that reads each."""

# The variables that kubelet sets for each Service of the namespace, for example QUEUECTL_METRICS_PORT_8080_TCP_ADDR.
_SERVICE: Final = "_SERVICE_HOST"
_LINK: Final = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)")


def settings_names() -> frozenset[str]:
    """All variables that :class:`Settings` reads. A nested setting can also be one JSON value."""
    return frozenset(PREFIX + name.upper() for name in _names(Settings))


def _names(model: type[BaseModel]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield name
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from (f"{name}__{inner}" for inner in _names(kind))


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """A sentence for each variable with the prefix that no code reads, by name."""
    settings = settings_names()
    services = {name.removesuffix(_SERVICE) for name in environ if name.endswith(_SERVICE)}
    return [
        _sentence(name, settings | PLAIN_VARIABLES.keys())
        for name in sorted(environ)
        if name.upper().startswith(PREFIX)
        and name.upper() not in settings  # pydantic ignores the case
        and name not in PLAIN_VARIABLES
        and not _is_link(name, services)
    ]


def _is_link(name: str, services: set[str]) -> bool:
    return any(
        name.startswith(service) and _LINK.fullmatch(name, len(service)) for service in services
    )


def _sentence(name: str, variables: Iterable[str]) -> str:
    rests = sorted(variable.removeprefix(PREFIX) for variable in variables)
    close = get_close_matches(name.upper().removeprefix(PREFIX), rests, n=3, cutoff=0.7)
    meant = " or ".join(PREFIX + rest for rest in close)
    hint = f"did you mean {meant}?" if meant else "see docs/reference/settings.md"
    return f"{name}: unknown variable; {hint}"
