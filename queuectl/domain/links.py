"""Links to other systems, such as Grafana or a log store: templates of named fields that an administrator sets.

A value is percent-encoded, so it is one part of a path or of a query. No field can be in the scheme or the host: a name that a user
chooses never decides where a link leads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from string import Formatter
from typing import Final, Self
from urllib.parse import quote, urlsplit

MOST_LINKS: Final = 20
_LONGEST_NAME: Final = 40
_LONGEST: Final = 2_000
_SCHEMES: Final = ("https", "http")
_NODE: Final = "node"
_POD: Final = "pod"
FIELDS: Final = (
    *("namespace", "name", "uid", "kind", "user", "cluster_queue"),
    *(_NODE, _POD, "from_ms", "to_ms"),
)
"""The fields of a template. ``from_ms`` and ``to_ms`` are the times of the run, in milliseconds since 1970."""


class LinkPlace(StrEnum):
    """Where a link is shown: it follows from the fields of its template."""

    JOB = "job"
    NODE = "node"
    POD = "pod"


@dataclass(frozen=True, slots=True)
class Link:
    """A link to show."""

    name: str
    url: str


@dataclass(frozen=True, slots=True)
class LinkTemplate:
    """A template that is known to be right.

    Attributes:
        name: the text of the link.
        parts: literal text, and the name of the field after it; None = no field.
    """

    name: str
    parts: tuple[tuple[str, str | None], ...]

    @classmethod
    def parse(cls, name: str, template: str) -> Self:
        """Read a template such as ``https://grafana.example/d/job?var-job={name}``. ``{{`` and ``}}`` are braces.

        Raises:
            ValueError: with the reason.
        """
        if not name.strip() or len(name) > _LONGEST_NAME or not name.isprintable():
            raise ValueError(f"the name of a link has 1 to {_LONGEST_NAME} printable characters")
        if len(template) > _LONGEST or not template.isascii() or not template.isprintable():
            raise ValueError(f"link {name}: a template has at most {_LONGEST} ASCII characters")
        parts = tuple(_parts(name, template))
        parsed = urlsplit(parts[0][0] if parts else "")
        if parsed.scheme not in _SCHEMES or not parsed.hostname or not parsed.path:
            raise ValueError(
                f"link {name}: a template begins with https:// or http://, a host and a path, all without fields"
            )
        if "@" in parsed.netloc or " " in template:
            raise ValueError(f"link {name}: a template has no user and no space")
        return cls(name.strip(), parts)

    @property
    def place(self) -> LinkPlace:
        """Where it is shown."""
        names = {field for _, field in self.parts}
        if _POD in names:
            return LinkPlace.POD
        return LinkPlace.NODE if _NODE in names else LinkPlace.JOB

    def filled(self, fields: Mapping[str, str]) -> Link | None:
        """The link with the values of these fields.

        None if a value that it needs is missing, or consists of dots: in a path, that would be a step to another page.
        """
        url = []
        for literal, field in self.parts:
            url.append(literal)
            if field is not None:
                value = fields.get(field, "")
                if not value.strip("."):
                    return None
                url.append(quote(value, safe="", errors="replace"))
        return Link(self.name, "".join(url))


def _parts(name: str, template: str) -> Iterable[tuple[str, str | None]]:
    try:
        parsed = list(Formatter().parse(template))
    except ValueError as error:
        raise ValueError(f"link {name}: {error}; write {{{{ for a brace") from error
    for literal, field, form, conversion in parsed:
        if field is not None and (field not in FIELDS or form or conversion):
            raise ValueError(
                f"link {name}: unknown field {{{field}}}; the fields are {', '.join(FIELDS)}"
            )
        yield literal, field


def filled(
    templates: Iterable[LinkTemplate], place: LinkPlace, fields: Mapping[str, str]
) -> tuple[Link, ...]:
    """The links of one place, in the order of their templates."""
    wanted = (each for each in templates if each.place is place)
    return tuple(link for each in wanted if (link := each.filled(fields)) is not None)
