"""Units that processes of queuectl have set aside, and processes that ended: each one is a defect.

Each rig ends with this check. A rig that starts processes uses :class:`tests.support.controllers.CheckedController`; a program that
runs parts of queuectl in its own process uses :func:`no_unit_is_set_aside`, as pytest does for each test.
"""

from __future__ import annotations

import json
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

from queuectl.domain.containment import Containment, SetAside

if TYPE_CHECKING:
    from queuectl.demo.controller import ControllerProcess

EVENT = "unit_set_aside"
_tell = Containment._tell


@contextmanager
def no_unit_is_set_aside() -> Iterator[None]:
    """Fail if a unit is set aside in this process during the block.

    Raises:
        AssertionError: with the units and the traces.
    """
    found: list[str] = []

    def recorded(self: Containment, one: SetAside, error: BaseException | None) -> None:
        text = "".join(traceback.format_exception(error)) if error is not None else ""
        found.append(f"{one.boundary} {one.ref}: {one.place}\n{text}")
        _tell(self, one, error)

    with patch.object(Containment, "_tell", recorded):
        yield
    assert not found, "set aside: " + "\n".join(found)


class SetAsideLog:
    """The log of a controller. It includes the runs that have ended, also by SIGKILL."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._accepted: set[str] = set()
        self.known = False
        """Whether a unit was set aside so far."""

    def accept(self) -> None:
        """A test has poisoned the units that are set aside so far. :meth:`new` leaves them out from now on."""
        self._accepted |= {event["unit"] for event in self._events()}

    def new(self) -> list[str]:
        """The units that were set aside since the last call: a line for each place and boundary, with the error of the first."""
        found: Counter[str] = Counter()
        units: dict[str, str] = {}
        for event in self._events():
            if event["unit"] not in self._accepted:
                at = f"{event['boundary']}: {event['place']}"
                found[at] += 1
                error = str(event.get("exception", "")).strip().rpartition("\n")[2]
                units.setdefault(at, f"{event['unit']}: {error}" if error else event["unit"])
        return [f"set aside {n} times at {at}, first {units[at]}" for at, n in found.items()]

    def _events(self) -> Iterator[dict[str, Any]]:
        for line in self._lines():
            if EVENT not in line:
                continue
            try:
                event = json.loads(line)
            except ValueError:  # the process was killed within the line
                continue
            if event.get("event") == EVENT:
                self.known = True
                yield event

    def _lines(self) -> list[str]:
        """Whole lines since the last call; none if the folder of the controller is removed."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        return whole.decode(errors="replace").splitlines()


OPEN: Final[list[SetAsideLog]] = []
"""Of the controllers that run for the tests of this process."""


def contained(controller: ControllerProcess, log: SetAsideLog | None = None) -> list[str]:
    """A line for each place and boundary: from the log, and if it has none, from the metrics of the last run.

    Args:
        controller: the process.
        log: its log; None reads all of it.
    """
    log = log or SetAsideLog(controller.log)
    return log.new() or ([] if log.known else counted(metrics_of(controller)))


def counted(metrics: str) -> list[str]:
    """A line for each boundary at which these metrics count an error."""
    from queuectl.demo.verdict import contained_errors

    counts = contained_errors(metrics)
    return [f"set aside {n} units at {boundary}" for boundary, n in counts.items() if n]


def ended(controller: ControllerProcess) -> list[str]:
    """A line if the process has ended by itself."""
    code = controller.ended
    return [] if code is None else [f"{controller.home.name} ended with exit code {code}"]


def metrics_of(controller: ControllerProcess) -> str:
    """The metrics of a process; empty if it does not answer."""
    import httpx2

    from queuectl.localcluster.client import get_plain

    try:
        return get_plain(f"{controller.metrics}/metrics", timeout=10.0).text
    except httpx2.HTTPError:
        return ""
