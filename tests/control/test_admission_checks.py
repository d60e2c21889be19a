"""Gangs wait for admission checks with their capacity reserved, on a real Postgres, and nothing of them starts before."""

from __future__ import annotations

import time
from copy import deepcopy
from typing import Any

import pytest

from queuectl.demo import scenario as m
from queuectl.domain.checks import CheckReport, CheckState, PodSetUpdate
from queuectl.domain.commands import DONE, Action
from queuectl.domain.fleet import Effect, Toleration
from queuectl.domain.ledger import Entry, State
from queuectl.domain.reasons import Code
from tests.control.rig import Rig, configuration, gang, live, rig
from tests.control.test_arrays import array, indexes
from tests.control.test_by_hand import answered
from tests.control.test_crash_matrix import fresh, survives
from tests.control.test_lifecycle import until_reason
from tests.control.test_pod_groups import group_entry, of_group, pod, running
from tests.control.test_resource_quota import QUOTA
from tests.control.work import ANY_WORK, Work, kind_parameter
from tests.doubles.admission import templates
from tests.doubles.known import KNOWN
from tests.support.postgres import TestPostgres

PENDING, READY, RETRY, REJECTED = CheckState


def check(
    name: str, controller: str = "queuectl.dev/external", timeout: int | None = None
) -> dict[str, Any]:
    policy = {"policy": {"timeoutSeconds": timeout}} if timeout is not None else {}
    return {
        "apiVersion": "queuectl.dev/v1",
        "kind": "AdmissionCheck",
        "metadata": {"name": name},
        "spec": {"controllerName": controller, **policy},
    }


async def with_checks(
    world: Rig, *names: str, answers_within: int | None = None, gpus: int = 16, **policy: int
) -> None:
    """The ClusterQueue needs these checks. ``policy``: more of its rules."""
    for name in names:
        await world.store.put_config(check(name, timeout=answers_within))
    (queue,) = (d for d in configuration(gpus) if d["kind"] == "ClusterQueue")
    queue["spec"]["policy"] = policy
    rules = [{"name": name} for name in names]
    queue["spec"]["admissionChecksStrategy"] = {"admissionChecks": rules}
    await world.store.put_config(queue)


async def held(world: Rig, name: str = "train", priority: str = "low") -> str:
    uid = world.cluster.submit(gang("Job", name, 2, priority))
    await world.until_entry(uid, lambda e: e.awaits_checks, "it waits for its checks")
    return uid


async def report(world: Rig, uid: str, name: str, state: CheckState, **more: Any) -> str:
    return await answered(world, uid, Action.CHECK, report=CheckReport(name, state, **more))


def untouched(world: Rig, uid: str) -> bool:
    """Whether the job was never resumed and has no pods."""
    job = world.cluster.job(uid)
    return job.suspended and job.attempt == 0 and not world.cluster.pods_of(uid)


async def test_a_gang_starts_on_its_reserved_nodes_when_all_its_checks_are_ready(
    database_url: str,
) -> None:
    async with rig(database_url, 2) as world:
        await with_checks(world, "budget", "data")
        uid = await held(world)
        entry = await world.until_state(uid, State.RESERVED)
        assert entry.reason.code is Code.WAITING_FOR_CHECKS
        assert entry.reason.message.endswith("are ready: budget (Pending), data (Pending)")
        assert entry.lease is not None
        other = world.cluster.submit(gang("Job", "other", 2))
        waits = await world.until_entry(
            other, lambda e: e.reason.code is not Code.QUEUED, "planned"
        )
        assert waits.state is State.PENDING, "the capacity is reserved for the first gang"
        assert await report(world, uid, "budget", READY, message="approved") == DONE
        one = await world.until_entry(uid, lambda e: len(e.checks.unready) == 1, "one is ready")
        assert (one.state, untouched(world, uid)) == (State.RESERVED, True)
        assert await report(world, uid, "data", READY) == DONE
        runs = await world.until_state(uid, State.RUNNING)
        assert runs.placement == entry.lease.placement
        world.cluster.finish(uid)
        await world.until_entry(other, lambda e: e.awaits_checks, "the next one has the capacity")


async def test_a_retry_frees_the_capacity_at_once_and_the_gang_queues_again_later(
    database_url: str,
) -> None:
    async with rig(database_url, 2) as world:
        await with_checks(world, "budget")
        uid = await held(world)
        other = world.cluster.submit(gang("Job", "other", 2))
        assert await report(world, uid, "budget", RETRY, message="later", requeue_after=2.0) == DONE
        waits = await world.until_state(uid, State.BACKOFF)
        assert waits.reason.code is Code.ADMISSION_CHECK
        assert (waits.lease, waits.checks.statuses) == (None, ())
        assert waits.requeue_at is not None
        assert waits.requeue_at - waits.since == pytest.approx(2.0)
        await world.until_entry(other, lambda e: e.awaits_checks, "the other one has the capacity")
        assert await report(world, other, "budget", REJECTED) == DONE
        again = await world.until_entry(uid, lambda e: e.awaits_checks, "it waits again")
        assert time.time() >= waits.requeue_at
        assert (again.checks.retries, again.checks.round) == ({"budget": 1}, 2)
        assert untouched(world, uid)


async def test_the_back_off_of_a_check_without_a_time_doubles(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        await with_checks(world, "budget")
        uid = await held(world)
        for seconds in (60.0, 120.0):
            assert await report(world, uid, "budget", RETRY) == DONE
            waits = await world.until_state(uid, State.BACKOFF)
            assert waits.requeue_at is not None
            assert waits.requeue_at - waits.since == pytest.approx(seconds)
            assert await answered(world, uid, Action.REQUEUE) == DONE
            await world.until_entry(uid, lambda e: e.awaits_checks, "it waits again")


async def test_a_rejected_gang_is_deactivated_until_it_is_activated(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        await with_checks(world, "budget")
        uid = await held(world)
        assert await report(world, uid, "budget", REJECTED, message="no money") == DONE
        entry = await world.until_state(uid, State.DEACTIVATED)
        assert entry.reason.code is Code.CHECK_REJECTED
        assert entry.reason.message == "admission check budget is Rejected: no money, by alice"
        assert untouched(world, uid)
        assert await answered(world, uid, Action.ACTIVATE) == DONE
        await world.until_entry(uid, lambda e: e.awaits_checks, "its checks are asked again")


@pytest.mark.parametrize(("state", "ends"), [(RETRY, State.BACKOFF), (REJECTED, State.DEACTIVATED)])
async def test_a_check_that_is_withdrawn_evicts_a_running_gang(
    database_url: str, state: CheckState, ends: State
) -> None:
    async with rig(database_url, 2) as world:
        await with_checks(world, "budget")
        uid = await held(world)
        await report(world, uid, "budget", READY)
        await world.until_state(uid, State.RUNNING)
        assert await report(world, uid, "budget", state, message="withdrawn") == DONE
        await world.until_state(uid, ends)
        assert live(world.cluster.pods_of(uid)) == []


async def test_a_gang_that_waits_for_a_check_can_be_preempted_without_loss(
    database_url: str,
) -> None:
    async with rig(database_url, 2) as world:
        await with_checks(world, "budget", minRuntimeSeconds=3600)
        low = await held(world, "low")
        high = await held(world, "high", "high")
        entry = await world.until_state(low, State.PENDING)
        assert (entry.evictions, entry.checks.statuses) == (0, ())
        assert await report(world, high, "budget", READY) == DONE
        await world.until_state(high, State.RUNNING)
        assert untouched(world, low)


async def test_a_check_without_an_answer_counts_as_a_retry_after_its_time(
    database_url: str,
) -> None:
    async with rig(database_url, 2) as world:
        await with_checks(world, "budget", answers_within=1)
        uid = world.cluster.submit(gang("Job", "train", 2))
        entry = await world.until_state(uid, State.BACKOFF)
        assert entry.reason.message == (
            "admission check budget is Retry: no answer within 1 s; it queues again in 60 s"
        )


async def test_a_gang_is_placed_again_if_its_reserved_node_is_lost(database_url: str) -> None:
    async with rig(database_url, 3) as world:
        await with_checks(world, "budget")
        uid = await held(world)
        entry = await world.until_state(uid, State.RESERVED)
        assert entry.lease is not None
        lost = entry.lease.placement.podsets[0].nodes[0][0]
        world.cluster.delete_node(lost)

        def elsewhere(entry: Entry) -> bool:
            placed = entry.lease.placement.podsets if entry.lease is not None else ()
            return bool(placed) and lost not in dict(placed[0].nodes)

        await world.until_entry(uid, elsewhere, "its reservation moves")
        assert await report(world, uid, "budget", READY) == DONE
        runs = await world.until_state(uid, State.RUNNING)
        assert runs.placement is not None
        assert lost not in dict(runs.placement.podsets[0].nodes)


async def test_a_gang_that_is_edited_while_its_checks_are_asked_needs_them_again(
    database_url: str,
) -> None:
    async with rig(database_url, 2, kinds=KNOWN) as world:
        await with_checks(world, "budget", "data")
        uid = world.cluster.submit(gang("PyTorchJob", "train", 2))
        await world.until_entry(uid, lambda e: e.awaits_checks, "it waits for its checks")
        document = deepcopy(world.cluster.server.get("pytorchjobs", "default", "train"))
        for _, template in templates(document):
            template["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "5"
        assert await report(world, uid, "budget", READY) == DONE
        world.cluster.user_patch("PyTorchJob", "default", "train", document)
        again = await world.until_entry(uid, lambda e: e.checks.round == 2, "it is held again")
        assert again.checks.ready == frozenset()
        for name in ("budget", "data"):
            assert await report(world, uid, name, READY) == DONE
        await world.until_state(uid, State.RUNNING)
        assert {p.requests["cpu"] for p in world.cluster.pods_of(uid)} == {5_000}


async def test_updates_of_a_check_reach_the_pods_of_the_podset(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        await with_checks(world, "data")
        uid = await held(world)
        update = PodSetUpdate(
            "main",
            labels=(("site", "north"),),
            annotations=(("data/volume", "vol-7"),),
            tolerations=(Toleration("staged", "Exists", "", Effect.NO_SCHEDULE),),
        )
        assert await report(world, uid, "data", READY, updates=(update,)) == DONE
        await world.until_state(uid, State.RUNNING)
        for pod in world.cluster.server.all("pods"):
            assert pod["metadata"]["labels"]["site"] == "north"
            assert pod["metadata"]["annotations"]["data/volume"] == "vol-7"
            assert {t["key"] for t in pod["spec"]["tolerations"]} == {"staged"}


@pytest.mark.parametrize("states", [(READY,), (PENDING, READY)])
async def test_later_reports_keep_the_updates_of_a_gang_that_has_started(
    database_url: str, states: tuple[CheckState, ...]
) -> None:
    update = PodSetUpdate("main", annotations=(("data/volume", "vol-7"),))
    async with rig(database_url, 2) as world:
        await with_checks(world, "data")
        uid = await held(world)
        assert await report(world, uid, "data", READY, updates=(update,)) == DONE
        await world.until_state(uid, State.RUNNING)
        for state in states:
            assert await report(world, uid, "data", state, message="Done") == DONE
        entry = await world.until_state(uid, State.RUNNING)
        (status,) = entry.checks.statuses
        assert (status.message, status.updates) == ("Done", (update,))
        lost = world.cluster.pods_of(uid)[0].name
        world.cluster.fail_pod(lost)

        def replaced() -> bool:
            pods = live(world.cluster.pods_of(uid))
            return len(pods) == 2 and lost not in {pod.name for pod in pods}

        await world.until(replaced, "its pod is created again")
        await world.until_state(uid, State.RUNNING)
        for pod in world.cluster.server.all("pods"):
            assert pod["metadata"]["annotations"]["data/volume"] == "vol-7"


REFUSED: dict[str, tuple[PodSetUpdate, str]] = {
    "another podset": (
        PodSetUpdate("worker"),
        "podSetUpdates: worker is not a podset of it (main)",
    ),
    "a key of ours": (
        PodSetUpdate("main", labels=(("queuectl.dev/attempt", "9"),)),
        "podSetUpdates: podset main: labels queuectl.dev/attempt belongs to the queue controller",
    ),
    "the node": (
        PodSetUpdate("main", node_selector=(("kubernetes.io/hostname", "n1"),)),
        "podSetUpdates: podset main: nodeSelector kubernetes.io/hostname belongs to the queue controller",
    ),
    "a value of the template": (
        PodSetUpdate("main", labels=(("app", "other"),)),
        "podSetUpdates: podset main: labels app is 'train' already and cannot become 'other'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_updates_that_cannot_be_honored_are_refused(database_url: str, case: str) -> None:
    update, why = REFUSED[case]
    async with rig(database_url, 2) as world:
        await with_checks(world, "data")
        document = gang("Job", "train", 2)
        document["spec"]["template"].setdefault("metadata", {})["labels"] = {"app": "train"}
        uid = world.cluster.submit(document)
        await world.until_entry(uid, lambda e: e.awaits_checks, "it waits for its checks")
        assert await report(world, uid, "data", READY, updates=(update,)) == why
        assert (await world.until_state(uid, State.RESERVED)).checks.unready


async def test_a_queue_with_a_check_without_a_controller_is_closed(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        await with_checks(world, "budget")
        uid = await held(world)
        await world.store.put_config(check("budget", controller="kueue.x-k8s.io/multikueue"))
        entry = await world.until_state(uid, State.PENDING)
        assert entry.reason.code is Code.UNSATISFIED_CHECKS
        assert entry.reason.message == (
            "ClusterQueue pool starts no gang: AdmissionCheck budget has controller "
            "kueue.x-k8s.io/multikueue, which queuectl does not support"
        )
        assert entry.lease is None


async def test_a_gang_whose_queue_no_longer_needs_checks_starts(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        await with_checks(world, "budget")
        uid = await held(world)
        await with_checks(world)
        await world.until_state(uid, State.RUNNING)


async def test_a_check_for_other_flavors_is_not_needed(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        await world.store.put_config(check("budget"))
        (queue,) = (d for d in configuration(16) if d["kind"] == "ClusterQueue")
        await world.store.put_config(m.flavor("spot", topology="gpus"))
        (group,) = queue["spec"]["resourceGroups"]
        group["flavors"].append({**group["flavors"][0], "name": "spot"})
        rule = {"name": "budget", "onFlavors": ["spot"]}
        queue["spec"]["admissionChecksStrategy"] = {"admissionChecks": [rule]}
        await world.store.put_config(queue)
        uid = world.cluster.submit(gang("Job", "train", 2))
        await world.until_state(uid, State.RUNNING)


@pytest.mark.faults
@pytest.mark.parametrize("kind", ["Job", "PyTorchJob"])
@pytest.mark.timeout(600)
async def test_a_kill_at_any_step_never_starts_a_gang_before_its_checks(
    postgres: TestPostgres, kind: str
) -> None:
    async def story(world: Rig) -> None:
        await with_checks(world, "budget")
        uid = world.cluster.submit(gang(kind, "train", 2))
        await world.until_entry(uid, lambda e: e.awaits_checks, "it waits for its check")
        assert untouched(world, uid)
        await report(world, uid, "budget", RETRY, requeue_after=0.5)
        await world.until_entry(uid, lambda e: e.awaits_checks and e.checks.round == 2, "again")
        assert untouched(world, uid)
        await report(world, uid, "budget", READY)
        await world.until_state(uid, State.RUNNING)
        world.cluster.finish(uid)
        await world.until_state(uid, State.FINISHED)
        await world.at_rest()

    await survives(postgres, story)


async def test_a_gang_waits_again_after_the_database_is_lost(
    database_url: str, postgres: TestPostgres
) -> None:
    async with rig(database_url, 2) as world:
        await with_checks(world, "budget")
        uid = await held(world)
    async with fresh(postgres) as url, rig(url, 2, cluster=world.cluster) as later:
        await with_checks(later, "budget")
        await later.until_entry(uid, lambda e: e.awaits_checks, "its check is asked again")
        assert untouched(later, uid)


async def test_the_pods_of_a_group_stay_gated_until_its_check_is_ready(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        await with_checks(world, "budget")
        for number in (1, 2):
            world.cluster.submit_pod(pod(f"g-{number}", "g", 2))
        entry = await group_entry(world, "g", State.RESERVED)
        assert entry.awaits_checks
        assert all(p.gated for p in of_group(world, "g"))
        assert await report(world, entry.uid, "budget", RETRY, requeue_after=0.5) == DONE
        await world.until_entry(entry.uid, lambda e: e.checks.round == 2, "it waits again")
        assert [p.gated for p in of_group(world, "g")] == [True, True], "no pod is deleted"
        assert await report(world, entry.uid, "budget", READY) == DONE
        await group_entry(world, "g", State.RUNNING)
        assert len(running(world, "g")) == 2


@pytest.mark.parametrize("kind", [kind_parameter(kind) for kind in ANY_WORK if kind != "array"])
async def test_work_of_any_kind_waits_for_its_checks_and_is_gated_until_they_are_ready(
    database_url: str, kind: str
) -> None:
    async with rig(database_url, 2) as world:
        await with_checks(world, "budget")
        work = Work(world, kind, "work")
        await work.until(State.RESERVED, Code.WAITING_FOR_CHECKS, "are ready: budget (Pending)")
        assert all(one.gated for one in work.pods())
        for entry in await work.entries():
            assert await report(world, entry.uid, "budget", READY) == DONE
        await work.until(State.RUNNING)
        assert {entry.attempt for entry in await work.entries()} == {1}


async def test_each_index_of_an_array_waits_for_its_own_check(database_url: str) -> None:
    """The second one has a pod, and can be placed, only after the first one has resumed the Job."""
    async with rig(database_url, 2) as world:
        await with_checks(world, "budget")
        uid = world.cluster.submit(array("sweep", 2, 2))
        first, second = indexes(uid, 2)
        await world.until_entry(first, lambda e: e.awaits_checks, "the first one waits")
        assert untouched(world, uid)
        assert await report(world, first, "budget", READY) == DONE
        await world.until_state(first, State.RUNNING)
        await world.until_entry(second, lambda e: e.awaits_checks, "the second one waits")
        assert live(world.cluster.pods_of(second)) == []
        assert await report(world, second, "budget", READY) == DONE
        await world.until_state(second, State.RUNNING)


@pytest.mark.parametrize("kind", ["JobSet", "PodGroup"])
async def test_a_retry_of_a_check_queues_work_of_any_kind_again_without_a_start(
    database_url: str, kind: str
) -> None:
    async with rig(database_url, 2) as world:
        await with_checks(world, "budget")
        work = Work(world, kind, "work")
        await work.until(State.RESERVED, Code.WAITING_FOR_CHECKS)
        for entry in await work.entries():
            assert await report(world, entry.uid, "budget", RETRY, requeue_after=0.1) == DONE
        await work.until(State.RESERVED, Code.WAITING_FOR_CHECKS)
        assert all(one.gated for one in work.pods())
        assert {entry.checks.round for entry in await work.entries()} == {2}
        for entry in await work.entries():
            assert await report(world, entry.uid, "budget", READY) == DONE
        await work.until(State.RUNNING)


async def test_a_gang_that_meets_a_limit_after_its_approval_releases_its_capacity(
    database_url: str,
) -> None:
    async with rig(database_url, 4) as world:
        await with_checks(world, "budget", gpus=32)
        world.cluster.server.create("resourcequotas", QUOTA)
        first, second = await held(world, "first"), await held(world, "second")
        for uid in (first, second):
            assert await report(world, uid, "budget", READY) == DONE
        await world.until_state(first, State.RUNNING)
        waits = await until_reason(world, second, State.PENDING, Code.RESOURCE_QUOTA_EXCEEDED)
        assert waits.lease is None
        world.cluster.finish(first)
        # An approval is for a placement.
        await world.until_entry(second, lambda e: e.awaits_checks, "it is held again")
        assert await report(world, second, "budget", READY) == DONE
        await world.until_state(second, State.RUNNING)
