"""The size of a gang in the ledger follows the nodes, devices and claims that decide it."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from queuectl.domain.devices import (
    ClaimReference,
    ClaimSpec,
    DeviceClass,
    DeviceOption,
    DeviceRequest,
)
from queuectl.domain.events import Submitted
from queuectl.domain.fleet import Node
from queuectl.domain.jobs import JobRecord
from queuectl.domain.ledger import Entry
from queuectl.domain.quantity import GPU, Resources
from queuectl.domain.queues import (
    ClusterQueue,
    FlavorQuotas,
    LocalQueue,
    QueueConfig,
    ResourceFlavor,
    ResourceGroup,
)
from queuectl.domain.records import (
    ClaimTemplateRecord,
    DeviceClassRecord,
    NodeRecord,
    Record,
    Upserted,
)
from queuectl.domain.words import by_numbers, counted_gpus, gpu_count
from queuectl.domain.workload import Placement, PodSet, PodSetPlacement, PodShape
from queuectl.lifecycle.machine import handle
from queuectl.lifecycle.observations import Observer
from queuectl.state.holdings import charged
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror
from queuectl.state.usage import OtherPodUsage

CHARGED = "example.com/gpu"
QUOTAS = FlavorQuotas("f", {GPU: 8, CHARGED: 8})
CONFIG = QueueConfig(
    cluster_queues={"cq": ClusterQueue("cq", (ResourceGroup((GPU, CHARGED), (QUOTAS,)),))},
    local_queues={("ns", "q"): LocalQueue("ns", "q", "cq")},
    flavors={"f": ResourceFlavor("f")},
)
SHARED = {f"{GPU}.replicas": "4", f"{GPU}.sharing-strategy": "mps"}
CLASS = DeviceClass("gpu.example.com", (), CHARGED)
TWO = ClaimSpec((DeviceRequest("r", (DeviceOption(CLASS.name, count=2),)),))


class World:
    """A job with three pods, as the watch and the ledger have it."""

    def __init__(self, shape: PodShape, claims: tuple[ClaimReference, ...] = ()) -> None:
        self.mirror = Mirror({"jobs": "Job"})
        podsets = (PodSet("w", 3, shape, claims=claims),)
        self.see(JobRecord("Job", "ns", "train", "u", 1, 0.0, "q", podsets))
        change = handle(None, Submitted(self.job, 0, "cq"), 0.0)
        assert change is not None
        self.ledger = Ledger([change.after])
        usage = OtherPodUsage(self.mirror, self.ledger)
        self.observer = Observer(self.mirror, self.ledger, usage, 60.0)
        self.observe()

    @property
    def job(self) -> JobRecord:
        return self.mirror.jobs["u"]

    def see(self, *records: Record) -> None:
        self.mirror.apply([Upserted(record) for record in records])

    def observe(self) -> Entry:
        self.ledger.apply(self.observer.observe(CONFIG, 1.0).changes)
        (entry,) = self.ledger
        return entry


def test_the_size_of_a_waiting_gang_follows_the_nodes_of_its_queue() -> None:
    world = World(PodShape(Resources({GPU: 1})))
    assert world.observe().gpus == 3
    world.see(NodeRecord(Node("n", SHARED, Resources({GPU: 8})), 2))
    assert world.observe().gpus == Fraction(3, 4)
    world.see(NodeRecord(Node("m", {}, Resources({GPU: 8})), 3))
    assert world.observe().gpus == 3, "a unit is not the same on all nodes"


def test_claims_are_gpus_of_the_gang_and_are_charged_to_its_queue() -> None:
    world = World(PodShape(Resources({})), (ClaimReference("c", template="two"),))
    assert world.observe().gpus == 0
    world.see(
        DeviceClassRecord(CLASS.name, 2, CLASS),
        ClaimTemplateRecord("ns", "two", "t", 3, TWO),
    )
    entry = world.observe()
    assert entry.gpus == 6
    placed = Placement((PodSetPlacement("w", (("n", 3),), {CHARGED: "f"}),))
    rows = dict(charged(entry, world.job, placed, CONFIG, world.mirror))
    assert rows["cq", "f", CHARGED] == 6


@pytest.mark.parametrize(
    ("gpus", "text"),
    [
        (8, "8 GPUs"),
        (1, "1 GPU"),
        (Fraction(1, 7), "0.14 GPUs"),
        (Fraction(24, 7), "3.43 GPUs"),
        (Fraction(1, 2), "0.5 GPUs"),
        (Fraction(1, 1000), "<0.01 GPUs"),
        (0, "0 GPUs"),
    ],
)
def test_sizes_have_at_most_two_digits_after_the_point(gpus: Fraction, text: str) -> None:
    assert counted_gpus(gpus) == text
    assert text.startswith(gpu_count(gpus))


def test_names_are_in_the_order_of_their_numbers() -> None:
    names = ["2", "10", f"1{'0' * 5_000}", "n", "n10-1", "n10-2", "n-2", "n-2a", "n-10", "²"]
    for seed in range(5):
        assert sorted(random.Random(seed).sample(names, len(names)), key=by_numbers) == names
