"""ResourceClaims that pods of a gang share: one node, and their devices count once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import pytest

from queuectl.devices.lower import DeviceCache, with_devices
from queuectl.devices.shared import without_claim_podsets
from queuectl.domain.devices import (
    CLAIM_PODSET,
    AllocatedDevice,
    Claim,
    NodeDevices,
    PodDevices,
)
from queuectl.domain.fleet import HOSTNAME, Fleet, Requirement, SelectorTerm
from queuectl.domain.limits import Allowance, QuotaLimit
from queuectl.domain.plan import Plan, Proof
from queuectl.domain.quantity import GPU
from queuectl.domain.queues import QueueingStrategy
from queuectl.domain.reasons import NEVER_FITS, Code
from queuectl.domain.snapshot import Admitted, CapacityLease, Snapshot
from queuectl.domain.workload import PodSet, Workload
from queuectl.planner import plan
from queuectl.planner.verify import PlanRule, verify
from tests.devices import build
from tests.devices.test_lower import claiming, cluster
from tests.devices.test_rows import ONE, gpus
from tests.planner.build import config, gang, holding, placed, podset, queue

SPEC = build.pod(build.option(count=2)).claims[0]


def claim(name: str = "pair", **more: object) -> Claim:
    return replace(Claim(name, "team", name, SPEC), **more)  # type: ignore[arg-type]


def sharing(count: int, *names: str, name: str = "w") -> PodSet:
    return replace(claiming(count, PodDevices(shared=names or ("pair",))), name=name)


def world(
    gangs: Sequence[Workload],
    claims: Sequence[Claim] = (claim(),),
    admitted: Sequence[Admitted] = (),
    nodes: int = 2,
) -> Snapshot:
    """Nodes with two GPUs each."""
    devices: dict[str, NodeDevices] = {f"n{i}": build.node(*gpus(2)) for i in range(nodes)}
    made = cluster(devices, gangs, admitted)
    return replace(made, claims={(c.namespace, c.name): c for c in claims})


def decided(snapshot: Snapshot) -> tuple[Snapshot, Plan]:
    cache = DeviceCache()
    lowered = with_devices(snapshot, cache)
    made = plan(lowered)
    assert verify(lowered, made, cache.selects) == ()
    return lowered, without_claim_podsets(made)


def starts(snapshot: Snapshot) -> dict[str, list[dict[str, int]]]:
    """The gangs that start, with the pods of each podset on each node."""
    return {
        a.uid: [dict(p.by_node) for p in a.placement.podsets] for a in decided(snapshot)[1].admitted
    }


def test_pods_that_share_a_claim_are_on_one_node() -> None:
    assert starts(world([gang("g", sharing(5), queue=None)])) == {"g": [{"n0": 5}]}


@pytest.mark.parametrize(("pods", "fits"), [(256, True), (257, False)])
def test_at_most_256_pods_share_a_claim(pods: int, fits: bool) -> None:
    allocated = claim(allocated=(AllocatedDevice(build.device("g0").id, "r0"),))
    both = gang("g", sharing(56), sharing(pods - 56, name="more"), queue=None)
    snapshot = world([both], claims=(allocated,), nodes=4)
    assert bool(starts(snapshot)) is fits
    text = "257 pods share ResourceClaim pair, at most 256 can use it"
    reasons = [one.reasons[0] for one in decided(snapshot)[1].pending]
    assert [(one.code, text in one.message) for one in reasons] == [(Code.UNSUPPORTED, True)] * (
        not fits
    )


def test_a_resource_quota_counts_a_claim_that_exists_once() -> None:
    full = QuotaLimit(f"requests.{GPU}", GPU, hard=2, used=2)
    snapshot = world([gang("g", sharing(5), queue=None)])
    snapshot = replace(snapshot, allowances={"team": (Allowance("quota", (full,)),)})
    assert starts(snapshot) == {"g": [{"n0": 5}]}


def test_podsets_that_share_a_claim_are_on_one_node() -> None:
    together = gang("g", sharing(3), sharing(1, name="driver"), queue=None)
    assert starts(world([together])) == {"g": [{"n0": 3}, {"n0": 1}]}


def test_the_devices_of_a_shared_claim_count_once() -> None:
    gangs = [
        gang("g", sharing(5), queue=None),
        gang("h", claiming(2, ONE), queue=None, queued_at=1.0),
        gang("i", claiming(1, ONE), queue=None, queued_at=2.0),
    ]
    assert starts(world(gangs)) == {"g": [{"n0": 5}], "h": [{"n1": 2}]}


def test_a_running_gang_holds_the_devices_of_its_claim() -> None:
    own = gang("r", sharing(3), queue=None)
    waits = gang("g", claiming(2, ONE), queue=None)
    for allocated in (None, (AllocatedDevice(gpus(2)[0].id, "r0"),)):
        running = holding(own, {"n0": 3}, flavor=None)
        snapshot = world([waits], [claim(allocated=allocated)], [running])
        assert starts(snapshot) == {"g": [{"n1": 2}]}


@dataclass(frozen=True)
class LostNode:
    """A running gang that loses node n0.

    Attributes:
        at: node to pods of each podset.
        lost: (podset, node, pods).
        repaired: node to pods of each podset then; None if the gang is evicted.
        allocated: the claim has devices of the node.
    """

    podsets: tuple[PodSet, ...]
    at: tuple[dict[str, int], ...]
    lost: tuple[tuple[str, str, int], ...]
    repaired: list[dict[str, int]] | None
    allocated: bool = False


LOST_NODES = {
    "all pods that share the claim": LostNode(
        (sharing(3),), ({"n0": 3},), (("w", "n0", 3),), [{"n1": 3}]
    ),
    "podsets that share the claim": LostNode(
        (sharing(2), sharing(1, name="driver")),
        ({"n0": 2}, {"n0": 1}),
        (("w", "n0", 2), ("driver", "n0", 1)),
        [{"n1": 2}, {"n1": 1}],
    ),
    "another podset runs on": LostNode(
        (sharing(2), replace(claiming(1, ONE), name="x")),
        ({"n0": 2}, {"n1": 1}),
        (("w", "n0", 2),),
        [{"n2": 2}, {"n1": 1}],
    ),
    "only another podset": LostNode(
        (sharing(2), replace(claiming(1, ONE), name="x")),
        ({"n1": 2}, {"n0": 1}),
        (("x", "n0", 1),),
        [{"n1": 2}, {"n2": 1}],
    ),
    "the devices of the claim are on the node": LostNode(
        (sharing(3),), ({"n0": 3},), (("w", "n0", 3),), None, allocated=True
    ),
}


@pytest.mark.parametrize("deleted", [True, False])
@pytest.mark.parametrize("case", LOST_NODES.values(), ids=LOST_NODES)
def test_a_gang_that_loses_a_node_is_repaired_with_its_claim_or_evicted(
    case: LostNode, deleted: bool
) -> None:
    running = replace(
        holding(gang("r", *case.podsets, queue=None), *case.at, flavor=None), lost=case.lost
    )
    node = (SelectorTerm((Requirement(HOSTNAME, "In", ("n0",)),)),)
    held = tuple(AllocatedDevice(device.id, "r0") for device in gpus(2))
    pair = claim(allocated=held, node=node) if case.allocated else claim()
    snapshot = world([], [pair], [running], nodes=3)
    nodes = (replace(n, ready=False) if n.name == "n0" else n for n in snapshot.fleet.nodes)
    fleet = Fleet(tuple(n for n in nodes if n.ready or not deleted))
    made = decided(replace(snapshot, fleet=fleet))[1]
    repaired = [[dict(p.by_node) for p in a.placement.podsets] for a in made.admitted]
    evicted = [eviction.code for eviction in made.evicted]
    expected = ([], [Code.NODE_FAILURES]) if case.repaired is None else ([case.repaired], [])
    assert (repaired, evicted) == expected
    assert made.proof is Proof.OPTIMAL


def test_an_allocated_claim_takes_no_more_devices_and_attracts_its_pods() -> None:
    node = (SelectorTerm((Requirement(HOSTNAME, "In", ("n1",)),)),)
    held = tuple(AllocatedDevice(device.id, "r0") for device in gpus(2))
    snapshot = world([gang("g", sharing(3), queue=None)], [claim(allocated=held, node=node)])
    assert starts(replace(snapshot, other_devices={"n1": held})) == {"g": [{"n1": 3}]}


def test_a_claim_that_a_running_gang_uses_serves_the_next_gang_after_its_end() -> None:
    held = tuple(AllocatedDevice(device.id, "r0") for device in gpus(2))
    first = holding(gang("r", sharing(3), queue=None), {"n0": 3}, flavor=None)
    waits = gang("g", sharing(2), queue=None)
    snapshot = world([waits], [claim(allocated=held)], [first])
    (refusal,) = decided(snapshot)[1].pending
    assert refusal.reasons[0].code is Code.TOPOLOGY_PLACEMENT_FAILED
    assert refusal.reasons[0].message == "another gang uses ResourceClaim pair: team/r"
    assert starts(world([waits])) == {"g": [{"n0": 2}]}


def test_a_gang_keeps_its_place_while_a_running_gang_uses_its_claim() -> None:
    held = tuple(AllocatedDevice(device.id, "r0") for device in gpus(2))
    first = holding(gang("r", sharing(3), queue=None), {"n0": 3}, flavor=None)
    pending = [gang("g", sharing(2)), gang("behind", podset("w"), queued_at=1.0)]
    snapshot = world(pending, [claim(allocated=held)], [first])
    strict = config(queue(strategy=QueueingStrategy.STRICT_FIFO))
    made = decided(replace(snapshot, config=strict))[1]
    codes = [refusal.reasons[0].code for refusal in made.pending]
    assert codes == [Code.TOPOLOGY_PLACEMENT_FAILED, Code.WAITING_IN_ORDER]


def test_a_claim_is_charged_under_the_current_configuration() -> None:
    own = gang("r", sharing(3))
    first, cache = world([], admitted=[holding(own, {"n0": 3})]), DeviceCache()
    classes = (("gpu", "example.com/gpu"),)
    rules = replace(first.config.rules, device_classes=classes)
    changed = replace(first, config=replace(first.config, rules=rules))
    for snapshot in (first, changed, first):
        fresh = with_devices(snapshot, DeviceCache())
        assert with_devices(snapshot, cache).admitted == fresh.admitted


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_a_shared_claim_serves_the_first_gang_in_queue_order_that_can_start(
    order: tuple[int, ...],
) -> None:
    gangs = [
        gang("large", sharing(1), replace(claiming(9, ONE), name="more"), queued_at=0.0),
        gang("low", sharing(1), queued_at=1.0),
        gang("high", sharing(1), queued_at=2.0, priority=1),
        gang("other", sharing(1, "other"), queued_at=3.0),
    ]
    both = [claim(), claim("other")]
    made = decided(world([gangs[number] for number in order], both))[1]
    assert sorted(admission.uid for admission in made.admitted) == ["high", "other"]
    refused = {refusal.uid: refusal.reasons[0] for refusal in made.pending}
    assert refused["low"].message == "another gang uses ResourceClaim pair: team/high"
    assert refused["large"].code in NEVER_FITS


def test_a_gang_with_a_lease_keeps_its_claim() -> None:
    lease = CapacityLease(placed(gang("low", sharing(1)), {"n0": 1}), ("r",), 0.0, 1e9)
    leaving = replace(holding(gang("r", claiming(2, ONE)), {"n0": 2}), leaving=True)
    gangs = [gang("low", sharing(1)), gang("high", sharing(1), priority=1)]
    snapshot = world(gangs, [claim()], [leaving], nodes=1)
    held = replace(snapshot.pending[0], lease=lease)
    made = decided(replace(snapshot, pending=(held, snapshot.pending[1])))[1]
    assert not made.admitted
    refused = {refusal.uid: refusal for refusal in made.pending}
    assert refused["low"].lease is not None
    assert refused["high"].reasons[0].message == "another gang uses ResourceClaim pair: team/low"


def test_a_plan_that_starts_two_gangs_with_one_claim_is_refused() -> None:
    gangs = [gang("a", sharing(1)), gang("b", sharing(1))]
    starts = [plan(with_devices(world([each]), DeviceCache())).admitted for each in gangs]
    cache = DeviceCache()
    both = Plan(admitted=(*starts[0], *starts[1]))
    violations = verify(with_devices(world(gangs), cache), both, cache.selects)
    assert {v.subject for v in violations if v.rule is PlanRule.RESOURCE_CLAIM} == {"a", "b"}


@pytest.mark.parametrize(
    ("gangs", "claims", "reason"),
    [
        ([gang("g", sharing(2), queue=None)], [], "ResourceClaim pair does not exist"),
        (
            [
                gang(
                    "g",
                    replace(sharing(1), group="x"),
                    replace(claiming(1, ONE), name="other", group="x"),
                    queue=None,
                )
            ],
            [claim()],
            "podset other is in a group with podsets that share a ResourceClaim",
        ),
    ],
)
def test_sharing_that_is_not_supported_is_refused_with_the_reason(
    gangs: list[Workload], claims: list[Claim], reason: str
) -> None:
    refusals = {refusal.uid: refusal for refusal in decided(world(gangs, claims))[1].pending}
    assert refusals["g"].reasons[0].code is Code.UNSUPPORTED
    assert reason in refusals["g"].reasons[0].message


def test_quota_is_charged_once_for_a_shared_claim() -> None:
    lowered, made = decided(world([gang("g", sharing(3))]))
    podsets = lowered.pending[0].workload.podsets
    assert [p.shape.requests[GPU] for p in podsets] == [0, 2]
    assert [p.podset for p in made.admitted[0].placement.podsets] == ["w"]
    own = gang("r", sharing(3))
    running = replace(holding(own, {"n0": 3}), placement=placed(own, {"n0": 3}, flavor="default"))
    admitted = with_devices(world([], [claim()], [running]), DeviceCache()).admitted[0]
    claims = admitted.placement.podsets[-1]
    assert claims.podset.startswith(CLAIM_PODSET)
    assert dict(claims.flavors) == {GPU: "default"}
