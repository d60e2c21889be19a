"""Work of any kind: jobs, arrays, pods and groups of pods, for tests of what applies to all of them alike."""

from __future__ import annotations

from typing import Final

import pytest
from _pytest.mark import ParameterSet

from queuectl.domain.jobs import PodRecord
from queuectl.domain.ledger import Entry, State
from queuectl.domain.reasons import Code
from queuectl.objects.kinds import KINDS
from tests.control.rig import Rig, gang
from tests.control.test_arrays import array, indexes
from tests.control.test_pod_groups import pod

ANY_WORK: Final = (*KINDS, "array", "Pod", "PodGroup")
REPRESENTATIVE: Final = ("Job", "JobSet", "array", "PodGroup")
"""Work that differs in its objects: `make test-fast` runs rules of all kinds for it, and `make test-kinds` for the others."""


def kind_parameter(kind: str, *others: str) -> ParameterSet:
    """Parameters of a test of a rule that holds for all kinds: the kinds of its work."""
    rest = not {kind, *others} <= {*REPRESENTATIVE}
    return pytest.param(kind, *others, marks=pytest.mark.kinds if rest else ())


class Work:
    """Two pods, or a single one, that queue when they are created. ``after``: their dependencies."""

    def __init__(self, world: Rig, kind: str, name: str, after: str | None = None) -> None:
        self._world, self._kind, self._name = world, kind, name
        annotations = {"queuectl.dev/after": after} if after is not None else {}
        if kind in ("Pod", "PodGroup"):
            total = 2 if kind == "PodGroup" else 1
            for number in range(total):
                document = pod(f"{name}-{number}", name if kind == "PodGroup" else "", total)
                # One pod of a group names what all of them wait for.
                document["metadata"]["annotations"] |= annotations if number == total - 1 else {}
                world.cluster.submit_pod(document)
            return
        document = dict(array(name, 2, 2) if kind == "array" else gang(kind, name, 2))
        document["metadata"].setdefault("annotations", {}).update(annotations)
        self.uid = world.cluster.submit(document)

    @property
    def reference(self) -> str:
        """As others name it."""
        kind = "Job" if self._kind == "array" else self._kind
        return f"{kind}/{self._name}-0" if kind == "Pod" else f"{kind}/{self._name}"

    async def entries(self) -> list[Entry]:
        if self._kind == "array":
            found = [await self._world.store.get_workload(uid) for uid in indexes(self.uid, 2)]
        elif self._kind in ("Pod", "PodGroup"):
            name = self.reference.partition("/")[2]
            found = [await self._world.store.find_workload(self._kind, "default", name)]
        else:
            found = [await self._world.store.get_workload(self.uid)]
        return [entry for entry in found if entry is not None]

    async def until(self, state: State, code: Code | None = None, message: str = "") -> None:
        async def so() -> bool:
            entries = await self.entries()
            return bool(entries) and all(
                entry.state is state
                and code in (None, entry.reason.code)
                and message in entry.reason.message
                for entry in entries
            )

        await self._world.until(so, f"{self._name} is {state}: {code}: {message}")

    def pods(self) -> list[PodRecord]:
        return [one for one in self._world.cluster.all_pods() if one.name.startswith(self._name)]

    def succeed(self) -> None:
        if self._kind in ("Pod", "PodGroup", "array"):
            for record in self.pods():
                document = self._world.cluster.server.get("pods", "default", record.name)
                self._world.cluster.controllers.set_phase(document, "Succeeded")
        else:
            self._world.cluster.finish(self.uid)
