"""Handle the object of a unit that was set aside again, on the path of the leader: ``python -m tests.fuzz.replay set-aside-1.json``.

The file is that of ``GET /api/v1/setasideobjects/ID``. The object is decoded, copied, observed, planned and explained in a cluster of a
few nodes, with a queue of the name that the object states. The exit code is 1 if it is set aside again, and the trace is printed.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

import msgspec

from queuectl.cluster.stream import identify
from queuectl.control.checked_plan import explained
from queuectl.demo import scenario as m
from queuectl.domain.containment import SetAside
from queuectl.domain.ledger import Loaded
from queuectl.objects import keys
from queuectl.objects.configuration.queue_config import validate
from queuectl.objects.files.set_aside_objects import FORMAT
from tests.fuzz.clusters import BEGIN, Controller, configuration, nodes


class Kept(msgspec.Struct):
    """The parts of a file that a replay uses."""

    format: str = ""
    truncated: bool = False
    resource: str = ""
    object: msgspec.Raw = msgspec.Raw(b"")


class Strict(Controller):
    """It reports each unit that is set aside, also an object that the API server would refuse."""

    def _told(self, found: SetAside, error: BaseException | None) -> None:
        trace = "".join(traceback.format_exception(error)) if error is not None else ""
        self.defects.append(f"set aside: {found.boundary} {found.ref}: {found.place}\n{trace}")


def listed(control: Controller, resource: str, *objects: bytes) -> None:
    """Give the objects of a resource to its reader and to the copy of the cluster."""
    page = b'{"metadata":{"resourceVersion":"9"},"items":[%b]}' % b",".join(objects)
    batch, _ = control.feeds[resource].page(page)
    control.apply(batch.deltas)


def replayed(file: Path) -> list[str]:
    """The defects that the object shows: an entry for each time that it is set aside, and for each plan that breaks a rule.

    Raises:
        SystemExit: the file has no whole object.
    """
    kept = msgspec.json.decode(file.read_bytes(), type=Kept)
    if kept.format != FORMAT or kept.truncated or not kept.resource:
        sys.exit(f"{file}: it has no whole object: it is cut, or has records only")
    control = Strict([BEGIN + 60.0])
    listed(control, "nodes", *map(msgspec.json.encode, nodes()))
    listed(control, kept.resource, bytes(kept.object))
    found = identify(kept.object)
    queue = (
        found.labels.get(prefix + keys.QUEUE_NAME) for prefix in (keys.PREFIX, keys.KUEUE_PREFIX)
    )
    own = [m.local_queue(found.namespace, name, "pool") for name in filter(None, queue)]
    documents = [*configuration(0), *own]
    control.state.load(Loaded((), tuple(validate(one)[0] for one in documents), 1))
    control.observed()
    checked, _ = control.planned()
    explained(checked, frozenset(one.uid for one in checked.plan.pending))
    return control.defects


def main() -> int:
    """Replay the file of the command line."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    defects = replayed(Path(sys.argv[1]))
    print("\n".join(defects) or "it is handled")
    return int(bool(defects))


if __name__ == "__main__":
    sys.exit(main())
