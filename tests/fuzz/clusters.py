"""Objects of all kinds in one cluster, on the path of the leader: stream, copy of the cluster, observation, plan, explanation, writes, rows.

Each input has valid objects and a few mutated ones alongside them, and a neighbor: a gang with its own queue and node, which must start
whatever the others are. Then some objects change again, and some are deleted.
"""

from __future__ import annotations

import asyncio
import copy
import json
import random
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import msgspec

from queuectl.cluster.resources import watched
from queuectl.cluster.stream import ResourceFeed
from queuectl.control.checked_plan import CheckedPlan, checked_plan, explained
from queuectl.control.leader.leader_state import LeaderState
from queuectl.db.engine import DatabaseSettings
from queuectl.db.ports import Commit
from queuectl.demo import scenario as m
from queuectl.demo.scenario import PodSetManifest
from queuectl.domain.containment import Boundary, Containment, SetAside
from queuectl.domain.ledger import Entry, EntryChange, Loaded, State
from queuectl.domain.records import Delta, Upserted
from queuectl.domain.snapshot import SolverLimits
from queuectl.objects import keys
from queuectl.objects.configuration.queue_config import validate
from queuectl.objects.errors import UNREADABLE
from queuectl.objects.files.refused_plans import BrokenRule, pack
from queuectl.objects.kinds import KINDS
from queuectl.planner.cache import PlannerCache
from queuectl.state.mirror import Mirror
from queuectl.state.pending_window import PendingWindow
from tests.control import rig
from tests.fuzz.figures import Result
from tests.fuzz.mutated import CHANGES, Document, mutated
from tests.support.mutations import Path
from tests.support.postgres import running_postgres
from tests.support.readable import READABLE
from tests.support.stores import PostgresStore

BEGIN: Final = 1_767_225_600.0  # 2026-01-01
GOOD: Final = "good"
OWNER: Final = "owner"
_OWNED: Final = {"kind": "Job", "name": "owner", "controller": True, "apiVersion": "batch/v1"}
RESOURCES: Final = {resource.name: resource for resource in watched()}
FEATURES: Final = frozenset((*READABLE, *CHANGES))
LEVELS_OF_NODES: Final = ("example.com/block", "example.com/rack", "kubernetes.io/hostname")
_HINDERING: Final = (keys.ADMISSION_GATED_BY, keys.AFTER)
_IDENTITY: Final = frozenset(
    ("name", "namespace", "uid", "resourceVersion", "creationTimestamp", "managedFields")
)
"""Fields of the metadata that the API server sets or checks itself."""
_SEPARATE: Final = frozenset(
    {"nodes", "namespaces", "priorityclasses", "runtimeclasses", "deviceclasses"}
)
_CYCLES: Final = 3


def _identity(path: Path) -> bool:
    return path == ("metadata",) or (path[0] == "metadata" and path[1] in _IDENTITY)


@dataclass
class Item:
    """One object. ``text``: as the API server sends it now."""

    resource: str
    document: Document
    text: bytes = b""

    def bump(self, version: int) -> None:
        self.document["metadata"]["resourceVersion"] = str(version)
        self.text = json.dumps(self.document).encode()


@dataclass
class Controller:
    """The parts of a leader that handle objects, without the API server."""

    clock: list[float]
    defects: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.containment = Containment(lambda: self.clock[0], self._told)
        self.mirror = Mirror.of(KINDS, self.containment)
        self.feeds = {name: ResourceFeed(one, self.containment) for name, one in RESOURCES.items()}
        self.state = LeaderState(
            self.mirror, SolverLimits(deterministic_time=0.1), 10.0, lambda: self.clock[0], 60.0
        )
        self.cache = PlannerCache()
        self.window = PendingWindow()

    def _told(self, found: SetAside, error: BaseException | None) -> None:
        if found.boundary is Boundary.OBJECT and isinstance(error, (*UNREADABLE, RecursionError)):
            return  # the error of the contract
        trace = "".join(traceback.format_exception(error)) if error is not None else ""
        self.defects.append(f"set aside: {found.boundary} {found.ref}: {found.place}\n{trace}")

    def apply(self, deltas: Sequence[Delta]) -> None:
        self.mirror.apply(deltas)

    def take(self, changes: Sequence[EntryChange]) -> list[EntryChange]:
        """Apply changes as if they were in the database."""
        marked = self.state.marked(changes)
        self.state.take_in(marked)
        self.state.follow(marked)
        return marked

    def observed(self) -> list[EntryChange]:
        """The changes of one tick."""
        state, now = self.state, self.clock[0]
        found = state.observer.observe(state.config, now).changes
        found += state.of_idle_gangs(found)
        found += state.of_stragglers(found)
        found += state.of_unhealthy_nodes(found)
        return self.take(found)

    def planned(self) -> tuple[CheckedPlan, list[EntryChange]]:
        """A plan, and its changes."""
        snapshot = self.state.snapshot(seek_room=True)
        checked = checked_plan(self.window.applied(snapshot), None, self.cache)
        self.defects += [f"violation: {one}" for one in checked.violations]
        self.defects += [f"alarm: {one}" for one in checked.decided.alarms]
        if not checked.usable:
            return checked, []
        changes = self.state.decider.changes(snapshot, checked.plan, self.clock[0], frozenset())
        self.state.planning.reserved = checked.plan.reserved
        return checked, self.take(changes)


@dataclass
class Database:
    """A real Postgres, and the loop on which its store runs."""

    store: PostgresStore
    loop: asyncio.Runner
    epoch: int = 0

    @classmethod
    @contextmanager
    def running(cls) -> Iterator[Database]:
        """A separate server, until the end of the block."""
        with asyncio.Runner() as loop:
            server = running_postgres()
            postgres = loop.run(server.__aenter__())
            try:
                name = loop.run(postgres.fresh())
                store = loop.run(PostgresStore.connect(DatabaseSettings(postgres.server.url(name))))
                made = cls(store, loop)
                made.epoch = loop.run(store.take_over("fuzz", 0))
                yield made
                loop.run(store.close())
            finally:
                loop.run(server.__aexit__(None, None, None))


class Clusters:
    """The stage. ``database``: where rows go; None = nowhere."""

    def __init__(self, database: Database | None = None, every: int = 4) -> None:
        """``every``: the rows of one in so many inputs are written."""
        self._database, self._every = database, every

    def __call__(self, seed: int) -> Result:
        rng, result = random.Random(f"cluster {seed}"), Result()
        kinds = set[str]()
        control = Controller([BEGIN + 60.0])
        items = _objects(rng, seed)
        for item in items:
            _mutate(rng, item, kinds, chance=0.4)
        documents = tuple(validate(one)[0] for one in configuration(seed))
        for name in RESOURCES:
            self._listed(control, name, [one for one in items if one.resource == name], result)
        control.state.load(Loaded((), documents, 1))
        rows: list[list[EntryChange]] = []
        for cycle in range(_CYCLES):
            rows += self._cycle(control, rng, seed, cycle, result)
            control.clock[0] += rng.choice((1.0, 20.0, 400.0, 100_000.0))
            self._changed(control, rng, items, kinds, cycle, result)
        if self._database is not None and seed % self._every == 0:
            self._database.loop.run(self._written(self._database, rows, control, seed, result))
        result.features = frozenset((*kinds, *(one.resource for one in items)))
        result.defects += control.defects
        return result

    def _listed(
        self, control: Controller, name: str, items: Sequence[Item], result: Result
    ) -> None:
        body = b'{"metadata":{"resourceVersion":"9"},"items":[%b]}'
        batch, _ = control.feeds[name].page(body % b",".join(one.text for one in items))
        self._count(batch.deltas, len(items), result)
        control.apply(batch.deltas)

    @staticmethod
    def _count(deltas: Sequence[Delta], given: int, result: Result) -> None:
        read = sum(isinstance(one, Upserted) for one in deltas)
        result.counted.update({"objects": given, "objects that are readable": read})

    def _changed(
        self,
        control: Controller,
        rng: random.Random,
        items: list[Item],
        kinds: set[str],
        cycle: int,
        result: Result,
    ) -> None:
        """Events of the watch: some objects are changed again, some are valid again, and some are deleted."""
        for number, item in enumerate(rng.sample(items, min(len(items), 5))):
            if item.document["metadata"]["name"] == GOOD:
                continue
            item.bump(100 * (cycle + 1) + number)
            _mutate(rng, item, kinds, chance=0.6)
            kind = rng.choice(("MODIFIED", "MODIFIED", "MODIFIED", "DELETED"))
            if kind == "DELETED":
                item.text = json.dumps(item.document).encode()
            line = b'{"type":"%b","object":%b}' % (kind.encode(), item.text)
            batch = control.feeds[item.resource].events([line])
            if batch.error is not None:
                control.defects.append(f"the watch of {item.resource} ends: {batch.error}")
            self._count(batch.deltas, 1, result)
            control.apply(batch.deltas)

    def _cycle(
        self, control: Controller, rng: random.Random, seed: int, cycle: int, result: Result
    ) -> list[list[EntryChange]]:
        rows = [control.observed()]
        checked, changes = control.planned()
        rows.append(changes)
        result.counted.update(
            {
                "plans": 1,
                "gangs that start": len(checked.plan.admitted),
                "gangs that wait": len(checked.plan.pending),
            }
        )
        waiting = [one.uid for one in checked.plan.pending]
        for found in explained(checked, frozenset(rng.sample(waiting, min(2, len(waiting))))):
            assert found.uid
            result.counted["diagnoses"] += 1
        for entry in list(control.state.ledger):
            for write in control.state.outstanding_writes(entry.uid) or ():
                msgspec.json.encode(write.patch)
                result.counted["writes"] += 1
        if cycle == 0:
            self._neighbor(control, checked, f"{seed}-{GOOD}")
            pack(checked.snapshot, checked.decided, [BrokenRule("fuzz", "", "")])
        return rows

    @staticmethod
    def _neighbor(control: Controller, checked: CheckedPlan, uid: str) -> None:
        entry = control.state.ledger.get(uid)
        if entry is None or entry.state is not State.STARTING:
            found = [one for one in checked.plan.pending if one.uid == uid]
            reason = found or (entry.reason if entry is not None else "it is not in the ledger")
            control.defects.append(f"the neighbor does not start: {reason}")
        elif not control.state.outstanding_writes(uid):
            control.defects.append("the start of the neighbor is not written")

    @staticmethod
    async def _written(
        database: Database,
        rows: Sequence[list[EntryChange]],
        control: Controller,
        seed: int,
        result: Result,
    ) -> None:
        """Write all changes to the database, and read the entries again."""
        written: dict[str, Entry] = {}
        store = database.store
        for found in rows:
            # A label can name a workload that another input has written.
            changes = [one for one in found if one.after.uid.startswith(f"{seed}-")]
            await store.commit(Commit(changes), epoch=database.epoch, cycle=1)
            result.counted["rows"] += len(changes)
            written |= {change.after.uid: change.after for change in changes}
        for uid, entry in written.items():
            read = await store.get_workload(uid)
            if read is None or (read.state, read.attempt) != (entry.state, entry.attempt):
                control.defects.append(f"{uid} is read as {read}, and {entry} was written")


def _mutate(rng: random.Random, item: Item, kinds: set[str], chance: float) -> None:
    name = item.document["metadata"]["name"]
    if name == GOOD or rng.random() >= chance:
        item.text = item.text or json.dumps(item.document).encode()
        return
    wire = READABLE[item.resource][0]
    item.text, found = mutated(rng, item.document, wire, _identity)
    kinds |= found


# ---- the cluster


def configuration(seed: int) -> list[Document]:
    amounts: dict[str, int | str] = {
        "nvidia.com/gpu": 64,
        "cpu": "1k",
        "pods": 1000,
        "memory": "1Pi",
    }
    small: dict[str, int | str] = {"nvidia.com/gpu": 8, "cpu": 64, "pods": 100, "memory": "1Ti"}
    return [
        m.topology("gpus", *LEVELS_OF_NODES[:2]),
        m.flavor("gpu", topology="gpus"),
        m.cluster_queue("pool", "gpu", amounts),
        m.local_queue(f"team-{seed}", "main", "pool"),
        m.flavor(GOOD, topology="gpus", **{GOOD: "true"}),
        m.cluster_queue(GOOD, GOOD, small),
        m.local_queue("default", GOOD, GOOD),
        m.priority_class("batch", 10),
    ]


def _objects(rng: random.Random, seed: int) -> list[Item]:
    """Nodes, the neighbor, and the objects of about half of the resources."""
    items = [Item("nodes", one) for one in nodes()]
    good = m.job(GOOD, "default", GOOD, PodSetManifest(count=2, gpus=2))
    items.append(Item("jobs", _placed(good, f"{seed}-{GOOD}")))
    owner = _renamed(rng, "jobs", READABLE["jobs"][1][0], OWNER, seed)
    items.append(Item("jobs", owner))
    names = rng.sample(sorted(READABLE), 14)
    for number, name in enumerate(names):
        for one, document in enumerate(READABLE[name][1]):
            items.append(Item(name, _renamed(rng, name, document, f"{number}-{one}", seed)))
    for number, item in enumerate(items):
        item.bump(10 + number)
    return items


def nodes() -> list[Document]:
    found = [dict(node) for node in rig.nodes(5)]
    for number, node in enumerate(found):
        labels = {"zone": "z1", "generation": "5", "example.com/block": "b0"}
        node["metadata"]["labels"] |= labels | {"example.com/rack": f"r{number // 2}"}
        node["metadata"]["uid"] = f"node-{number}"
    good = found[-1]
    good["metadata"]["name"] = GOOD
    good["metadata"]["labels"] |= {GOOD: "true", "kubernetes.io/hostname": GOOD}
    good["spec"] = {"taints": [{"key": GOOD, "effect": "NoSchedule"}]}
    return found


def _placed(job: Document, uid: str) -> Document:
    made = copy.deepcopy(job)
    made["metadata"] |= {"name": GOOD, "uid": uid, "creationTimestamp": "2026-01-01T00:00:00Z"}
    made["spec"]["suspend"] = True  # as the webhook leaves it
    pods = made["spec"]["template"]["spec"]
    pods["nodeSelector"] = {GOOD: "true"}
    pods["tolerations"] = [{"key": GOOD, "operator": "Exists"}]
    return made


def _renamed(
    rng: random.Random, resource: str, document: Document, suffix: str, seed: int
) -> Document:
    made: Document = copy.deepcopy(document)
    meta = made["metadata"]
    if resource not in _SEPARATE:
        meta |= {"name": f"{resource}-{suffix}"}
    meta["uid"] = f"{seed}-{resource}-{suffix}"
    if resource == "namespaces":
        meta["name"] = f"team-{seed}"
    if "namespace" in meta:
        meta["namespace"] = f"team-{seed}"  # the identifiers of groups of pods contain it
    meta.setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
    if resource == "deviceclasses":
        meta["name"] = "gpu.example.com"
    if resource == "resourceclaimtemplates":
        meta["name"] = "one"
    if resource == "nodes":
        meta["name"] = "n9"
    if rng.random() < 0.7:
        for name in _HINDERING:
            meta.get("annotations", {}).pop(keys.PREFIX + name, None)
        meta.pop("ownerReferences", None)
    if keys.WORKLOAD_LABEL in meta.get("labels", {}):
        meta["labels"][keys.WORKLOAD_LABEL] = f"{seed}-group"
    if resource == "pods" and rng.random() < 0.5:
        meta["ownerReferences"] = [{"uid": f"{seed}-jobs-{OWNER}", **_OWNED}]
    return made
