"""Valid objects with a few changes, drawn from a seed: awkward values, values of other fields, absent fields, and repeated items."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any, Final

import msgspec

from queuectl.objects import keys
from tests.support.mutations import VALUES, Path, mutations, paths_of

Document = dict[str, Any]

PLAUSIBLE: Final = (
    *("0", "1", "2", "3", "4", "8", "-1", "60", "true", "false", "1.5", "1Gi", "500m", "1k", "8Ei"),
    *("main", "team", "a", "b", "n0", "rack", "zone", "z1", "gpu.example.com", "nvidia.com/gpu"),
    *("kubernetes.io/hostname", "topology.queuectl.dev/rack", "topology.queuectl.dev/block"),
    *("Any", "single-numa-node", "2026-01-01T00:00:00Z", "2027-01-01T00:00:00+02:00", "0-1,3"),
    *("Job/a:ok", "Job/b", "Job/a:ok,Job/c:any", "example.com/data", "1h", "P1D", "In", "Exists"),
    *('[{"topology":"topology.queuectl.dev/rack","size":2}]', '[{"topology":"rack","size":0}]'),
)
"""Values that a reader accepts in some field."""
ANNOTATIONS: Final = tuple(
    sorted(
        keys.PREFIX + value
        for name, value in vars(keys).items()
        if name.isupper() and isinstance(value, str) and value and "/" not in value
    )
)
"""All annotations and labels of queuectl."""
CHANGES: Final = ("awkward value", "plausible value", "absent field", "repeated item", "annotation")
"""The kinds of changes."""


@cache
def _paths(document: str, wire: type[msgspec.Struct] | None) -> tuple[Path, ...]:
    given = json.loads(document)
    found = paths_of(given, wire) if wire is not None else list(_plain(given, ()))
    return tuple(path for path in found if path and path[0] not in ("kind", "apiVersion"))


def _plain(document: Any, at: Path) -> Iterator[Path]:
    yield at
    items: Iterable[tuple[str | int, Any]] = ()
    if isinstance(document, dict):
        items = document.items()
    elif isinstance(document, list):
        items = enumerate(document)
    for key, value in items:
        yield from _plain(value, (*at, key))


def mutated(
    rng: random.Random,
    document: Document,
    wire: type[msgspec.Struct] | None,
    keep: Callable[[Path], bool] = lambda _: False,
    most: int = 3,
) -> tuple[bytes, frozenset[str]]:
    """The document with up to ``most`` changes outside ``keep``, as JSON, and the kinds of its changes."""
    changed, kinds = json.loads(json.dumps(document)), set[str]()
    for _ in range(rng.randint(0, most - 1)):
        kind = rng.choice(CHANGES[1:])
        if _changed(rng, changed, kind, wire, keep):
            kinds.add(kind)
    text = json.dumps(changed).encode()
    if rng.random() < 0.6:
        path = _drawn(rng, changed, wire, keep)
        if path is not None:
            [text] = mutations(changed, path, (rng.choice(VALUES),))
            kinds.add(CHANGES[0])
    return text, frozenset(kinds)


def _drawn(
    rng: random.Random,
    document: Document,
    wire: type[msgspec.Struct] | None,
    keep: Callable[[Path], bool],
) -> Path | None:
    paths = [path for path in _paths(json.dumps(document), wire) if not keep(path)]
    return rng.choice(paths) if paths else None


def _changed(
    rng: random.Random,
    document: Document,
    kind: str,
    wire: type[msgspec.Struct] | None,
    keep: Callable[[Path], bool],
) -> bool:
    """Change the document in place. False if the document has no such place."""
    if kind == "annotation":
        return _annotated(rng, document)
    path = _place(rng, document, kind, wire, keep)
    if path is None:
        return False
    try:
        parent = _parent(document, path)
        match kind:
            case "plausible value":
                return _replaced(rng, parent, path[-1])
            case "absent field":
                del parent[path[-1]]
            case _:
                items = parent[path[-1]]
                items.append(json.loads(json.dumps(rng.choice(items))))
    except (KeyError, IndexError, TypeError, AttributeError):
        return False
    return True


def _place(
    rng: random.Random,
    document: Document,
    kind: str,
    wire: type[msgspec.Struct] | None,
    keep: Callable[[Path], bool],
) -> Path | None:
    """Where a change can be: an item is repeated in a list that has one."""
    if kind != "repeated item":
        return _drawn(rng, document, None if kind != "plausible value" else wire, keep)
    lists = [path for path in _plain(document, ()) if path and not keep(path)]
    lists = [path for path in lists if _is_filled(_parent(document, (*path, "")))]
    return rng.choice(lists) if lists else None


def _is_filled(value: Any) -> bool:
    return isinstance(value, list) and bool(value)


def _parent(document: Any, path: Sequence[str | int]) -> Any:
    for step in path[:-1]:
        document = document[step]
    return document


def _replaced(rng: random.Random, parent: Any, key: Any) -> bool:
    old = parent[key] if isinstance(parent, list) else parent.get(key)
    if isinstance(old, bool):
        parent[key] = not old
    elif isinstance(old, int):
        parent[key] = rng.choice((0, 1, 2, 3, 7, old + 1, old - 1, 1000, 2**31 - 1))
    elif isinstance(old, str) or old is None:
        parent[key] = rng.choice(PLAUSIBLE)
    else:
        return False
    return True


def _annotated(rng: random.Random, document: Document) -> bool:
    """Put an annotation or label of queuectl where one can be: on the object, or on a template of pods."""
    places = [path for path in _plain(document, ()) if path and path[-1] == "metadata"]
    metadata = _parent(document, (*rng.choice(places), "")) if places else None
    if not isinstance(metadata, dict):
        return False
    where = rng.choice(("annotations", "labels"))
    known = metadata.get(where)
    values = dict(known) if isinstance(known, dict) else {}
    values[rng.choice(ANNOTATIONS)] = rng.choice(PLAUSIBLE)
    metadata[where] = values
    return True
