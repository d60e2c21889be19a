"""Dependencies as the controller follows them: work that is linear in them, whatever jobs a tenant creates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import msgspec
import pytest

from queuectl.domain.events import Admit, Adopt
from queuectl.domain.gates import INVALID
from queuectl.domain.jobs import JobOutcome, PodRecord
from queuectl.domain.ledger import State
from queuectl.domain.quantity import Resources
from queuectl.domain.queues import QueueConfig
from queuectl.domain.reasons import Code
from queuectl.domain.records import Deleted, Upserted
from queuectl.domain.workload import Placement, PodSetPlacement
from queuectl.lifecycle.machine import handle
from queuectl.lifecycle.observations import Observations, Observer
from queuectl.objects.kinds import KINDS
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror
from queuectl.state.usage import OtherPodUsage
from tests.support.work import lines_run

CONFIG = QueueConfig()
JOB = KINDS["Job"]
SPELLINGS = [f"{kind}/{{}}{ends}" for kind in ("job", "Job", "jOb", "joB", "JOb", "jOB", "JoB", "JOB") for ends in ("", ":ok", ":any")]  # fmt: skip


class World:
    """A mirror, a ledger and an observer, as the leader puts them together."""

    def __init__(self) -> None:
        self.mirror, self.ledger = Mirror.of(KINDS), Ledger()
        usage = OtherPodUsage(self.mirror, self.ledger)
        self.observer = Observer(self.mirror, self.ledger, usage, 60.0)

    def see(self, name: str, after: str = "", version: int = 1, **labels: str) -> None:
        metadata = {
            "name": name, "namespace": "team", "uid": f"uid-{name}", "resourceVersion": str(version),
            "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"queuectl.dev/queue-name": "main", **labels},
            "annotations": {"queuectl.dev/after": after} if after else {},
        }  # fmt: skip
        template = {
            "spec": {"containers": [{"name": "m", "resources": {"requests": {"cpu": "1"}}}]}
        }
        spec = {"suspend": True, "parallelism": 1, "completions": 1, "template": template}
        document = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
        self.mirror.apply([Upserted(JOB.read(msgspec.convert(document, JOB.wire)))])

    def ends(self, name: str, outcome: JobOutcome) -> None:
        """The job ends, and is deleted before the next observation."""
        job = self.mirror.jobs[f"uid-{name}"]
        version = job.version + 1
        self.mirror.apply([Upserted(replace(job, version=version, outcome=outcome))])
        self.mirror.apply([Deleted("jobs", job.uid, version)])

    def restart(self) -> None:
        """Another observation of all workloads of the ledger, as of a standby that begins to lead."""
        self.mirror.touched.clear()
        usage = OtherPodUsage(self.mirror, self.ledger)
        self.observer = Observer(self.mirror, self.ledger, usage, 60.0)
        entries = {entry.uid for entry in self.ledger}
        self.observer.again({*self.mirror.jobs, *self.mirror.ended, *entries})

    def observe(self) -> Observations:
        seen = self.observer.observe(CONFIG, 1e9)
        self.ledger.apply(seen.changes)
        return seen


SHAPES: Mapping[str, Callable[[int], list[str]]] = {
    "a chain": lambda n: [f"job/s{k - 1}" if k else "" for k in range(n)],
    "a ring": lambda n: [f"job/s{(k - 1) % n}" for k in range(n)],
    "20 jobs that name each other": lambda n: [
        ",".join(f"job/s{k // 20 * 20 + j}" for j in range(20)) for k in range(n)
    ],
    "layers": lambda n: [
        ",".join(f"job/s{k // 20 * 20 - 20 + j}" for j in range(20)) if k >= 20 else "" for k in range(n)
    ],
    "many spellings of the four jobs before": lambda n: [
        ",".join(s.format(f"s{k - j}") for j in range(1, 5) if k >= j for s in SPELLINGS) for k in range(n)
    ],
}  # fmt: skip


def world_of(shape: str, number: int) -> World:
    world = World()
    for k, after in enumerate(SHAPES[shape](number)):
        world.see(f"s{k}", after)
    return world


@pytest.mark.parametrize("shape", SHAPES)
def test_the_first_observation_is_linear_in_the_dependencies(shape: str) -> None:
    few, many = (lines_run(world_of(shape, n).observe) for n in (100, 200))
    assert many < 2.4 * few


@pytest.mark.parametrize("shape", SHAPES)
def test_a_change_that_dependents_cannot_see_is_observed_alone(shape: str) -> None:
    world = world_of(shape, 100)
    world.observe()
    after = SHAPES[shape](100)[0]
    world.see("s0", after, version=2, team="edited")
    assert [change.after.uid for change in world.observe().changes] == ["uid-s0"]
    world.see("s0", after, version=3, team="edited again")
    assert world.observer._dependents.of(set(world.mirror.touched)) == set()


def test_jobs_that_are_created_before_those_that_they_name_cost_one_observation_each() -> None:
    def create(number: int) -> int:
        world = World()
        names = [f"s{k}" for k in range(number)]
        for k in reversed(range(number)):
            world.see(names[k], f"job/{names[k - 1]}" if k else "")
            world.observe()
        return lines_run(world.observe)

    assert create(100) == create(50)


def test_an_ended_job_that_is_created_again_closes_no_cycle_with_a_job_that_runs() -> None:
    """The gates of the ledger count: the object of a job that depended on the earlier one still lists it."""
    world = World()
    world.see("first")
    world.see("second", "job/first")
    world.observe()
    for entry in list(world.ledger):
        if entry.name == "second":
            placed = Placement((PodSetPlacement("main", (("n0", 1),)),))
            change = handle(entry, Adopt(placed, 1), 1e9)
            assert change is not None
            world.ledger.apply([change])
    world.see("first", "job/second", version=2)
    world.observe()
    (first,) = (entry for entry in world.ledger if entry.name == "first")
    assert first.reason.code is not Code.DEPENDENCY_NEVER_SATISFIED


def test_a_job_with_more_dependencies_than_are_possible_is_held_with_this_error() -> None:
    world = World()
    world.see("late", ",".join(f"job/s{k}" for k in range(120)))
    world.observe()
    (entry,) = world.ledger
    assert entry.state is State.HELD
    assert entry.gates == (INVALID,)
    assert entry.reason.code is Code.MISCONFIGURED
    assert entry.reason.message == (
        "metadata.annotations: queuectl.dev/after: 120 jobs are listed; a job can depend on 100 at most"
    )


def test_a_gate_that_is_written_with_another_case_of_its_kind_is_the_same() -> None:
    world = World()
    world.see("late", "Job/prep")
    world.observe()
    world.see("late", "job/prep", version=2)
    world.observe()
    (entry,) = world.ledger
    assert (entry.state, entry.gates) == (State.HELD, ("after Job/prep:ok",))


def test_a_gang_is_observed_as_time_passes_only_while_a_pod_of_it_is_unschedulable() -> None:
    world = World()
    world.see("train")
    world.observe()
    one = PodRecord("team", "p", "p", 2, Resources({"cpu": 1000}), owner="uid-train", owner_kind="Job", attempt=1, unschedulable=True)  # fmt: skip
    world.mirror.apply([Upserted(one)])
    world.observe()
    assert world.mirror.unschedulable == {"uid-train"}
    bound = PodRecord("team", "p", "p", 3, Resources({"cpu": 1000}), owner="uid-train", owner_kind="Job", attempt=1, node="n0")  # fmt: skip
    world.mirror.apply([Upserted(bound)])
    world.observe()
    assert world.mirror.unschedulable == set()


def test_a_gang_is_observed_as_time_passes_only_while_a_pod_of_an_earlier_attempt_waits() -> None:
    world = World()
    world.see("train")
    world.observe()
    (entry,) = world.ledger
    placed = Placement((PodSetPlacement("main", (("n0", 1),)),))
    change = handle(entry, Admit(placed), 1e9)
    assert change is not None
    world.ledger.apply([change])
    assert change.after.state is State.STARTING
    late = PodRecord("team", "p", "p", 2, Resources({"cpu": 1000}), owner="uid-train", owner_kind="Job", gated=True)  # fmt: skip
    world.mirror.apply([Upserted(late)])
    world.observe()
    assert world.mirror.unschedulable == {"uid-train"}
    world.mirror.apply([Deleted("pods", "p", 3)])
    world.observe()
    assert world.mirror.unschedulable == set()


def test_an_event_that_changes_only_the_version_of_a_pod_is_reported_and_not_observed() -> None:
    """A write that met the older object can succeed now."""
    world = World()
    world.see("train")
    world.observe()
    one = PodRecord("team", "p", "p", 2, Resources({"cpu": 1000}), owner="uid-train", owner_kind="Job")  # fmt: skip
    world.mirror.apply([Upserted(one)])
    world.observe()
    newer = PodRecord("team", "p", "p", 3, Resources({"cpu": 1000}), owner="uid-train", owner_kind="Job")  # fmt: skip
    assert world.mirror.apply([Upserted(newer)]) == {"uid-train"}
    assert world.mirror.touched == set()
    assert [pod.version for pod in world.mirror.pods_of(world.mirror.jobs["uid-train"])] == [3]


@pytest.mark.parametrize("led_by_another", [False, True])
@pytest.mark.parametrize(
    ("outcome", "code", "state"),
    [
        (JobOutcome.SUCCEEDED, Code.SUCCEEDED, State.PENDING),
        (JobOutcome.FAILED, Code.FAILED, State.HELD),
    ],
)
def test_a_job_that_is_deleted_right_after_its_end_has_ended(
    outcome: JobOutcome, code: Code, state: State, *, led_by_another: bool
) -> None:
    """Its time to live can be shorter than a change of the leader."""
    world = World()
    world.see("prep")
    world.see("train", "job/prep:ok")
    world.observe()
    world.ends("prep", outcome)
    if led_by_another:
        world.restart()
    changed = {change.after.name: change.after for change in world.observe().changes}
    assert (changed["prep"].state, changed["prep"].reason.code) == (State.FINISHED, code)
    assert changed["train"].state is state
    world.observe()
    assert world.mirror.ended == {}
    world.see("late", "job/prep:ok")
    [late] = world.observe().changes
    assert (late.after.name, late.after.state) == ("late", State.HELD)


def test_a_job_with_the_name_of_one_that_ended_and_was_deleted_is_another_one() -> None:
    world = World()
    world.see("prep")
    world.see("train", "job/prep:ok")
    world.observe()
    prep = world.mirror.jobs["uid-prep"]
    world.ends("prep", JobOutcome.SUCCEEDED)
    world.mirror.apply([Upserted(replace(prep, uid="uid-again", version=9))])
    world.observe()
    world.mirror.touched |= {"uid-prep", "uid-train"}
    world.observe()
    [train] = [entry for entry in world.ledger if entry.name == "train"]
    assert train.state is State.HELD
