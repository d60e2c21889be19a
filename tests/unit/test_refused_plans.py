"""The file of a refused plan: it replays to the same plan, and a redacted one to the same plan under other names."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest

from queuectl.domain.devices import (
    ClaimReference,
    ClaimSpec,
    Device,
    DeviceConstraint,
    DeviceId,
    DeviceInventory,
    DeviceKind,
    DeviceOption,
    DeviceRequest,
    NodeDevices,
    PodDevices,
)
from queuectl.domain.errors import BadInput
from queuectl.domain.plan import Plan
from queuectl.domain.snapshot import Pending, Snapshot
from queuectl.objects.files.refused_plans import (
    BrokenRule,
    pack,
    plan_bytes,
    redact,
    same_plan,
    unpack,
)
from queuectl.planner import plan
from tests.planner.generate_cohorts import contest
from tests.planner.mixed import mixed

BROKEN = [BrokenRule("Whole", "w1", "team-a/train has 3 of 4 pods")]


@cache
def planned() -> tuple[tuple[Snapshot, Plan], ...]:
    mixes = [mixed(seed) for seed in range(12)]
    contests = [contest(seed, fair=bool(seed % 2), nodes=bool(seed % 3)) for seed in range(12)]
    return tuple((snapshot, plan(snapshot)) for snapshot in (*mixes, *contests))


def test_a_file_replays_to_the_same_bytes() -> None:
    for snapshot, made in planned():
        content = pack(snapshot, made, BROKEN)
        assert content == pack(snapshot, made, BROKEN)
        read = unpack(content, "it")
        again = plan(read.snapshot)
        assert plan_bytes(again) == read.plan
        assert same_plan(read, again)
        assert list(read.broken) == BROKEN


def test_a_redacted_file_replays_to_the_same_plan_under_other_names() -> None:
    for snapshot, made in planned():
        read = unpack(redact(pack(snapshot, made, BROKEN)), "it")
        again = plan(read.snapshot)
        assert same_plan(read, again)
        assert len(again.admitted) == len(made.admitted)
        assert [b.rule for b in read.broken] == ["Whole"]


def named(snapshot: Snapshot) -> Iterator[str]:
    for pending in snapshot.pending:
        workload = pending.workload
        yield from (workload.uid, workload.namespace, workload.name, workload.queue or "")
    yield from (node.name for node in snapshot.fleet.nodes)
    yield from snapshot.config.cluster_queues


def test_a_redacted_file_has_none_of_the_names() -> None:
    for snapshot, made in planned():
        secret = {name: f"secret-{name}" for name in named(snapshot) if name}
        gangs = tuple(
            replace(p, workload=replace(p.workload, namespace="secret-ns", name="secret-gang"))
            for p in snapshot.pending
        )
        runs = tuple(
            replace(g, workload=replace(g.workload, charged_queue="secret-deleted"))
            for g in snapshot.admitted
        )
        nodes = [replace(n, name=secret[n.name]) for n in snapshot.fleet.nodes]
        fleet = replace(snapshot.fleet, nodes=tuple(nodes))
        given = replace(snapshot, pending=gangs, admitted=runs, fleet=fleet)
        content = redact(pack(given, made, BROKEN))
        unzipped = gzip.decompress(content)
        assert b"secret" not in unzipped
        assert b"team-a/train" not in unzipped


CLAIMED = ClaimSpec(
    (
        DeviceRequest(
            "secret-request",
            (DeviceOption("gpu", ("'secret-selector' == device.driver",)), DeviceOption("gpu")),
            ("secret-first", "secret-second"),
        ),
    ),
    (DeviceConstraint(("secret-request/secret-first",), "gpu.example/root"),),
)
SHARES = PodDevices((CLAIMED,), ("secret-claim",))
NAMES = (ClaimReference("secret-entry", "secret-template"),)
GPU = DeviceKind("gpu.example", (("gpu.example/uuid", "secret-uuid"),))


def test_a_file_with_devices_replays_and_a_redacted_one_has_no_devices_and_no_names_of_claims():
    for snapshot, made in planned()[::4]:
        gangs = tuple(_with_claims(pending) for pending in snapshot.pending)
        only = NodeDevices((Device(DeviceId("gpu.example", "secret-pool", "secret-gpu"), GPU),))
        inventory = DeviceInventory({node.name: only for node in snapshot.fleet.nodes})
        given = replace(snapshot, pending=gangs, devices=inventory)
        content = pack(given, plan(given), BROKEN)
        assert unpack(content, "it").snapshot.devices.nodes == inventory.nodes
        read = unpack(redact(content), "it")
        assert same_plan(read, plan(read.snapshot))
        assert b"secret" not in gzip.decompress(redact(content))
        assert not read.snapshot.devices.nodes
        assert len(made.admitted) == len(plan(given).admitted)


def _with_claims(pending: Pending) -> Pending:
    podsets = tuple(
        replace(p, claims=NAMES, shape=replace(p.shape, devices=SHARES))
        for p in pending.workload.podsets
    )
    return replace(pending, workload=replace(pending.workload, podsets=podsets))


def test_another_plan_is_not_the_same() -> None:
    snapshot, made = next((s, p) for s, p in planned() if p.admitted)
    other = replace(made, admitted=made.admitted[1:])
    for content in (pack(snapshot, other, []), redact(pack(snapshot, other, []))):
        read = unpack(content, "it")
        assert not same_plan(read, plan(read.snapshot))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "cut off"),
        (b"no gzip", "no file of a refused plan"),
        (gzip.compress(b"\x80", mtime=0), "missing required field"),
        (pack(*planned()[0], [])[:-20], "cut off"),
        (gzip.compress(zlib.compress(b""), mtime=0), "no file of a refused plan"),
    ],
    ids=["empty", "not zipped", "another document", "cut off", "not MessagePack"],
)
def test_what_is_not_such_a_file_is_named(content: bytes, says: str) -> None:
    with pytest.raises(BadInput, match=f"^it: .*{says}"):
        unpack(content, "it")
