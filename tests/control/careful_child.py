"""The child of a careful start on a copy of the cluster double: ``python -m tests.control.careful_child FILE BOUNDARY ERROR``.

At one boundary, objects whose name begins with ``poison`` end it. It reads the real database, and exits with status 3 if it has written.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from queuectl.cluster import stream
from queuectl.cluster.stream import LEVELS
from queuectl.control.careful_child import ChildArguments, begin, run, try_everything
from queuectl.control.progress import SteadyClock
from queuectl.control.settings import Settings
from queuectl.db.engine import DatabaseSettings
from queuectl.db.store import PostgresLeaderStore
from queuectl.devices import matching
from queuectl.objects.kinds import KINDS
from queuectl.planner.cycle.cycle import AdmissionCycle
from queuectl.state.mirror import Mirror
from tests.doubles.cluster import FakeCluster

POISON: Final = "poison"
_WROTE: Final = 3


def save(cluster: FakeCluster, file: Path) -> None:
    """Write a copy of the cluster for the child."""
    objects = {name: list(found.values()) for name, found in cluster.server.objects.items()}
    file.write_text(json.dumps({"version": cluster.server.version, "objects": objects}))


def restored(file: Path) -> FakeCluster:
    """The copy of the cluster."""
    saved, cluster = json.loads(file.read_text()), FakeCluster(namespaces=())
    for resource, found in saved["objects"].items():
        for document in found:
            meta = document["metadata"]
            key = (meta.get("namespace", ""), meta["name"])
            cluster.server.objects[resource][key] = document
    cluster.server.version = saved["version"]
    return cluster


def crash() -> None:
    """Read at address 0."""
    ctypes.string_at(0)


def fill() -> None:
    """Take all memory that there is."""
    taken = []
    while True:
        taken.append(bytearray(1 << 24))


def hang() -> None:
    """Sleep in a call that holds the interpreter."""
    ctypes.PyDLL(None).sleep(1000)


ERRORS: Final = {"crash": crash, "fill": fill, "hang": hang}


def _before(owner: Any, method: str, name: Callable[..., str], error: Callable[[], None]) -> None:
    real = getattr(owner, method)

    def poisoned(*args: Any, **keywords: Any) -> Any:
        if name(*args, **keywords).startswith(POISON):
            error()
        return real(*args, **keywords)

    setattr(owner, method, poisoned)


def poison_objects(error: Callable[[], None]) -> None:
    """Let the decoding of a Job with such a name end the process."""
    real = stream.decoded

    def decoded(decode: Any, document: Any, levels: int) -> Any:
        whole = levels == LEVELS and decode is not stream._object
        text = bytes(document)
        if whole and b'"kind":"Job"' in text and f'"name":"{POISON}'.encode() in text:
            error()
        return real(decode, document, levels)

    stream.decoded = decoded


def poison_claims(error: Callable[[], None]) -> None:
    """Let the evaluation of an expression with the word end the process."""
    real = vars(matching)["outcome"]

    def outcome(source: str, kind: Any) -> Any:
        if POISON in source:
            error()
        return real(source, kind)

    vars(matching)["outcome"] = outcome


POISONS: Final[dict[str, Callable[[Callable[[], None]], None]]] = {
    "object": poison_objects,
    "claim": poison_claims,
    "record": lambda e: _before(Mirror, "_keep_job", lambda _, job, old: job.name, e),
    "gang": lambda e: _before(AdmissionCycle, "consider", lambda _, p: p.workload.name, e),
}


async def _main(given: ChildArguments) -> None:
    _, file, boundary, error = sys.argv
    clock = SteadyClock()
    POISONS[boundary](ERRORS[error])
    containment = begin(given, clock)
    cluster = restored(Path(file))
    cluster.containment = containment
    store = await PostgresLeaderStore.connect(DatabaseSettings(given.database_url, read_only=True))
    clock.set(time.time())
    await try_everything(store, cluster, Settings(), clock, KINDS, containment)
    await store.close()
    if cluster.writes or cluster.events:
        sys.exit(_WROTE)


if __name__ == "__main__":
    run(_main)
