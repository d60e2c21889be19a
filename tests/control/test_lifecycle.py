"""The life cycle on a real Postgres: holds, drains, gates, timeouts, limits and notices; with a kill at any step."""

from __future__ import annotations

import time
from typing import Any

import pytest

from queuectl.demo import scenario as m
from queuectl.domain.commands import Action
from queuectl.domain.ledger import Entry, State
from queuectl.domain.reasons import Code
from tests.control.rig import Rig, configuration, gang, live, rig
from tests.control.test_crash_matrix import survives
from tests.support.postgres import TestPostgres

KINDS = ("Job", "PyTorchJob")


def rules(**fields: Any) -> dict[str, Any]:
    """A Configuration document."""
    return {
        "apiVersion": "queuectl.dev/v1",
        "kind": "Configuration",
        "metadata": {"name": "default"},
        **fields,
    }


def starts_within(
    seconds: float, retries: int | None = None, recovers: float | None = None
) -> dict[str, Any]:
    strategy: dict[str, Any] = {"backoffBaseSeconds": 1}
    if retries is not None:
        strategy["backoffLimitCount"] = retries
    waits = {"timeout": f"{seconds}s", "recoveryTimeout": f"{recovers or seconds}s"}
    return rules(waitForPodsReady={**waits, "requeuingStrategy": strategy})


async def stop_queue(world: Rig, policy: str, gpus: int) -> None:
    """Set the stopPolicy of the ClusterQueue."""
    for document in configuration(gpus):
        if document["kind"] == "ClusterQueue":
            spec = {**document["spec"], "stopPolicy": policy}
            await world.store.put_config({**document, "spec": spec})


async def until_reason(world: Rig, uid: str, state: State, code: Code) -> Entry:
    return await world.until_entry(
        uid, lambda entry: (entry.state, entry.reason.code) == (state, code), f"{state} {code}"
    )


def document_of(world: Rig, uid: str, resource: str = "jobs") -> Any:
    return next(d for d in world.cluster.server.all(resource) if d["metadata"]["uid"] == uid)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_running_gang_is_held_and_released(database_url: str, kind: str) -> None:
    async with rig(database_url, 2) as world:
        uid = world.cluster.submit(gang(kind, "train", 2))
        await world.until_state(uid, State.RUNNING)
        await world.ask(uid, Action.HOLD)
        held = await world.until_state(uid, State.HELD)
        assert held.reason.message == "held by alice"
        assert live(world.cluster.pods_of(uid)) == []
        other = world.cluster.submit(gang(kind, "other", 2))
        await world.until_state(other, State.RUNNING)
        await world.ask(uid, Action.RELEASE)
        await world.until_state(uid, State.PENDING)
        world.cluster.finish(other)
        again = await world.until_state(uid, State.RUNNING)
        assert again.attempt == 2
        messages = [line.reason.message for line in await world.store.history(uid)]
        assert "held by alice" in messages
        assert "released by alice" in messages
        await world.at_rest()


async def test_a_deactivated_gang_waits_until_it_is_activated(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        uid = world.cluster.submit(gang("Job", "train", 2))
        await world.until_state(uid, State.RUNNING)
        await world.ask(uid, Action.DEACTIVATE)
        await world.until_state(uid, State.DEACTIVATED)
        await world.until(
            lambda: any(e.uid == uid and e.reason == "Deactivated" for e in world.cluster.events),
            "an Event reports it",
        )
        await world.ask(uid, Action.ACTIVATE)
        await world.until_state(uid, State.RUNNING)


async def test_a_priority_set_by_hand_decides_the_queue_order(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        first = world.cluster.submit(gang("Job", "first", 2))
        await world.until_state(first, State.RUNNING)
        low = world.cluster.submit(gang("Job", "low", 2))
        await world.until_state(low, State.PENDING)
        await world.ask(low, Action.PRIORITY, 50)
        entry = await world.until_state(low, State.RUNNING)
        assert (entry.priority, entry.priority_set) == (50, 50), "it also preempts by it"
        evicted = await world.until_state(first, State.PENDING)
        assert evicted.evictions == 1


async def test_a_requeued_gang_is_evicted_and_starts_again(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        uid = world.cluster.submit(gang("Job", "train", 2))
        await world.until_state(uid, State.RUNNING)
        await world.ask(uid, Action.REQUEUE)

        async def again() -> bool:
            entry = await world.store.get_workload(uid)
            return entry is not None and entry.attempt == 2 and entry.state is State.RUNNING

        await world.until(again, "it runs as attempt 2")


@pytest.mark.parametrize("policy", ["Hold", "HoldAndDrain"])
async def test_a_stopped_queue_admits_no_gang_and_resumes_in_order(
    database_url: str, policy: str
) -> None:
    async with rig(database_url, 2) as world:
        uids = []
        for name in ("first", "second", "third"):
            uids.append(world.cluster.submit(gang("Job", name, 2)))
            state = State.RUNNING if name == "first" else State.PENDING
            await world.until_state(uids[-1], state)
        first, second, third = uids
        await stop_queue(world, policy, 16)
        await until_reason(world, second, State.PENDING, Code.QUEUE_STOPPED)
        if policy == "HoldAndDrain":
            await until_reason(world, first, State.PENDING, Code.QUEUE_STOPPED)
            assert live(world.cluster.pods_of(first)) == []
        else:
            assert len(live(world.cluster.pods_of(first))) == 2
            world.cluster.finish(first)
            await world.until_state(first, State.FINISHED)
        assert (await until_reason(world, third, State.PENDING, Code.QUEUE_STOPPED)).attempt == 0
        await stop_queue(world, "None", 16)
        order = [first, second, third] if policy == "HoldAndDrain" else [second, third]
        for number, uid in enumerate(order):
            await world.until_state(uid, State.RUNNING)
            for later in order[number + 1 :]:
                assert live(world.cluster.pods_of(later)) == []
            world.cluster.finish(uid)
            await world.until_state(uid, State.FINISHED)
        await world.at_rest()


async def test_a_gang_whose_pods_never_start_backs_off_and_is_deactivated(
    database_url: str,
) -> None:
    async with rig(database_url, 2) as world:
        await world.store.put_config(starts_within(0.3, retries=1))
        world.cluster.controllers.hold_starts = True
        uid = world.cluster.submit(gang("Job", "train", 2))
        waits = await world.until_state(uid, State.BACKOFF)
        assert waits.failures == 1
        assert waits.requeue_at is not None
        assert 1.0 <= waits.requeue_at - waits.since <= 1.1
        assert waits.requeued_at is not None
        given_up = await world.until_state(uid, State.DEACTIVATED)
        assert (given_up.attempt, given_up.reason.code) == (2, Code.REQUEUING_LIMIT)
        world.cluster.controllers.hold_starts = False
        await world.store.put_config(starts_within(300))  # a busy machine is slow
        await world.ask(uid, Action.ACTIVATE)
        await world.until_state(uid, State.RUNNING)


async def test_no_gang_is_evicted_for_a_gang_that_failed_to_start_twice_until_it_is_requeued(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its image does not exist, for example."""
    async with rig(database_url, 1) as world:
        await world.store.put_config(starts_within(5))
        low = world.cluster.submit(gang("Job", "low", 1))
        await world.until_state(low, State.RUNNING)
        controllers = world.cluster.controllers
        set_phase = controllers.set_phase

        def but_high(pod: dict[str, Any], phase: str, *arguments: Any, **more: Any) -> None:
            if phase != "Running" or not pod["metadata"]["name"].startswith("high"):
                set_phase(pod, phase, *arguments, **more)

        monkeypatch.setattr(controllers, "set_phase", but_high)
        high = world.cluster.submit(gang("Job", "high", 1, priority="high"))
        await world.until_entry(
            high, lambda one: (one.state, one.failures) == (State.PENDING, 2), "two failed starts"
        )
        texts = [line.reason.message for line in await world.store.history(high)]
        assert sum("without evicting other gangs" in text for text in texts) == 1
        await world.until_entry(low, lambda one: one.ready_at is not None, "it runs")
        await world.at_rest()
        assert ((await world.entry(low)).evictions, (await world.entry(high)).attempt) == (2, 2)
        monkeypatch.undo()
        await world.ask(high, Action.REQUEUE)
        await world.until_state(high, State.RUNNING)


async def test_a_gang_that_does_not_recover_is_evicted_with_all_its_pods(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        await world.store.put_config(starts_within(300, recovers=0.5))
        uid = world.cluster.submit(gang("Job", "train", 2))
        await world.until_state(uid, State.RUNNING)
        world.cluster.controllers.hold_starts = True
        world.cluster.fail_pod(live(world.cluster.pods_of(uid))[0].name)
        waits = await world.until_state(uid, State.BACKOFF)
        assert "PodsReadyTimeout" in waits.reason.message
        causes = {
            line.reason.details.get("cause")
            for line in await world.store.history(uid)
            if line.to_state is State.EVICTING
        }
        assert causes == {"WaitForRecovery"}
        world.cluster.controllers.hold_starts = False
        await world.until_state(uid, State.RUNNING)


async def test_a_gang_that_recovers_in_time_runs_on(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        await world.store.put_config(starts_within(20))
        uid = world.cluster.submit(gang("Job", "train", 2))
        await world.until_state(uid, State.RUNNING)
        world.cluster.controllers.hold_starts = True
        world.cluster.fail_pod(live(world.cluster.pods_of(uid))[0].name)

        async def complete(wanted: bool) -> bool:
            entry = await world.store.get_workload(uid)
            return entry is not None and (entry.unready_since is None) == wanted

        await world.until(lambda: complete(False), "the loss is recorded")
        world.cluster.controllers.hold_starts = False
        await world.until(lambda: complete(True), "all its pods run again")
        assert (await world.until_state(uid, State.RUNNING)).attempt == 1


async def until_message(world: Rig, uid: str, code: Code, message: str) -> None:
    await world.until_entry(
        uid, lambda e: (e.reason.code, e.reason.message) == (code, message), f"{code}: {message}"
    )


@pytest.mark.parametrize("kind", KINDS)
async def test_the_reason_of_a_running_gang_counts_its_lost_pods_and_what_they_wait_for(
    database_url: str, kind: str
) -> None:
    async with rig(database_url, 3) as world:
        uid = world.cluster.submit(gang(kind, "train", 3))
        await until_message(world, uid, Code.PODS_READY, "all 3 pods are ready")
        holds = world.cluster.controllers
        holds.hold_ends = holds.hold_starts = True
        for number in (1, 2):
            pod = live(world.cluster.pods_of(uid))[0]
            world.cluster.delete_pod_of_user(pod.name)
            verb = "is" if number == 1 else "are"
            lost = f"{number} of 3 pods {verb} not ready: {number} terminating"
            await until_message(world, uid, Code.WAIT_FOR_RECOVERY, lost)
        holds.hold_ends = False
        lost = "2 of 3 pods are not ready: 2 not ready yet"
        await until_message(world, uid, Code.WAIT_FOR_RECOVERY, lost)
        holds.hold_starts = False
        await until_message(world, uid, Code.PODS_READY, "all 3 pods are ready")


@pytest.mark.parametrize(
    ("fields", "waits"),
    [
        ({"schedulingGates": [{"name": "example.com/data"}]}, "2 with the scheduling gate example.com/data"),
        ({"schedulerName": "volcano"}, "2 for the scheduler volcano"),
    ],
)  # fmt: skip
async def test_the_reason_of_a_starting_gang_names_gates_and_schedulers_of_others(
    database_url: str, fields: dict[str, Any], waits: str
) -> None:
    async with rig(database_url, 2) as world:
        document = gang("Job", "train", 2)
        document["spec"]["template"]["spec"] |= fields
        uid = world.cluster.submit(document)
        text = f"admitted as attempt 1; its pods wait for others: {waits}"
        await until_message(world, uid, Code.ADMITTED, text)
        await world.store.put_config(starts_within(0.3))
        await world.until_state(uid, State.BACKOFF)
        history = await world.store.history(uid)
        # On a slow machine, the gang has already had another attempt.
        evicted = (line for line in history if line.to_state is State.EVICTING)
        (end,) = (line for line in evicted if line.attempt == 1)
        assert end.reason.code is Code.PODS_READY_TIMEOUT
        assert end.reason.message.endswith(f"; 2 of 2 pods are not ready: {waits}")


def limited(name: str, seconds: int) -> dict[str, Any]:
    document = dict(gang("Job", name, 2))
    document["metadata"].setdefault("labels", {})
    document["metadata"]["labels"]["kueue.x-k8s.io/max-exec-time-seconds"] = str(seconds)
    return document


async def test_a_gang_is_stopped_when_the_sum_of_its_attempts_reaches_the_limit(
    database_url: str,
) -> None:
    async with rig(database_url, 2) as world:
        uid = world.cluster.submit(limited("train", 2))
        await world.until_state(uid, State.RUNNING)
        high = world.cluster.submit(gang("Job", "high", 2, "high"))
        await world.until_state(high, State.RUNNING)
        waits = await world.until_state(uid, State.PENDING)
        assert 0 < waits.past_seconds < 2
        world.cluster.finish(high)
        stopped = await world.until_state(uid, State.DEACTIVATED)
        assert stopped.reason.code is Code.MAX_EXECUTION_TIME
        assert stopped.attempt == 2
        assert stopped.past_seconds >= 2.0
        assert live(world.cluster.pods_of(uid)) == []


async def limit_queue(world: Rig, **policy: int) -> None:
    for document in configuration(16):
        if document["kind"] == "ClusterQueue":
            spec = {**document["spec"], "policy": policy}
            await world.store.put_config({**document, "spec": spec})


async def test_the_default_limit_of_a_queue_at_the_start_of_a_gang_is_enforced(
    database_url: str,
) -> None:
    async with rig(database_url, 2) as world:
        await limit_queue(world, defaultMaxExecTimeSeconds=2)
        uid = world.cluster.submit(gang("Job", "train", 2))
        await world.until_state(uid, State.RUNNING)
        await limit_queue(world)
        stopped = await world.until_state(uid, State.DEACTIVATED)
        assert stopped.reason.code is Code.MAX_EXECUTION_TIME
        assert "of 2 s, which ClusterQueue pool" in stopped.reason.message
        free = world.cluster.submit(gang("Job", "free", 2))
        started = await world.until_state(free, State.RUNNING)
        assert started.execution_limit(None) is None


async def test_a_gated_job_starts_when_its_last_gate_is_removed(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        document = dict(gang("Job", "train", 2))
        key = "kueue.x-k8s.io/admission-gated-by"
        document["metadata"].setdefault("annotations", {})[key] = (
            "example.com/budget, example.com/data"
        )
        uid = world.cluster.submit(document)
        held = await until_reason(world, uid, State.HELD, Code.ADMISSION_GATED)
        assert (
            held.reason.message
            == "held until these admission gates are removed: example.com/budget, example.com/data"
        )

        def gate(value: str | None) -> None:
            world.cluster.user_patch(
                "Job", "default", "train", {"metadata": {"annotations": {key: value}}}
            )

        gate("example.com/data")

        async def one_left() -> bool:
            entry = await world.store.get_workload(uid)
            return entry is not None and entry.gates == ("example.com/data",)

        await world.until(one_left, "one gate is left")
        gate(None)
        await world.until_state(uid, State.RUNNING)


async def test_slots_of_finished_pods_are_free_for_others_while_the_gang_runs(
    database_url: str,
) -> None:
    async with rig(database_url, 3) as world:
        uid = world.cluster.submit(gang("Job", "train", 3))
        await world.until_state(uid, State.RUNNING)
        late = world.cluster.submit(gang("Job", "late", 2))
        await world.until_state(late, State.PENDING)
        for pod in live(world.cluster.pods_of(uid))[:2]:
            document = world.cluster.server.get("pods", "default", pod.name)
            world.cluster.controllers.set_phase(document, "Succeeded")
        await world.until_state(late, State.RUNNING)
        left = await world.until_state(uid, State.RUNNING)
        assert left.placement is not None
        assert left.placement.podsets[0].count == 1
        assert len(live(world.cluster.pods_of(uid))) == 1
        world.cluster.finish(uid)
        await world.until_state(uid, State.FINISHED)


@pytest.mark.parametrize("what", ["Job", "elastic Job", "JobSet", "one Job of a JobSet"])
async def test_a_gang_that_starts_again_requests_only_the_pods_that_have_not_ended(
    database_url: str, what: str
) -> None:
    async with rig(database_url, 4) as world:
        document = gang(what.rsplit(maxsplit=1)[-1], "train", 4)
        if what == "one Job of a JobSet":
            _, workers = document["spec"]["replicatedJobs"]
            workers["replicas"] = 1
            workers["template"]["spec"] |= {"parallelism": 3, "completions": 3}
        if what == "elastic Job":
            document["metadata"]["annotations"] = {"queuectl.dev/elastic-job": "true"}
            ignored = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
            document["spec"]["podFailurePolicy"] = {"rules": [ignored]}
        uid = world.cluster.submit(document)
        await world.until_state(uid, State.RUNNING)
        every = sorted(live(world.cluster.pods_of(uid)), key=lambda pod: (pod.podset, pod.rank))
        for pod in every[::2]:
            found = world.cluster.server.get("pods", "default", pod.name)
            world.cluster.controllers.set_phase(found, "Succeeded")
        late = world.cluster.submit(gang("Job", "late", 2))
        await world.until_state(late, State.RUNNING)
        await world.ask(uid, Action.REQUEUE)
        again = await world.until_entry(
            uid, lambda e: e.attempt == 2 and e.state is State.RUNNING, "runs again"
        )
        assert again.pods == 2
        left = {(pod.podset, pod.rank) for pod in live(world.cluster.pods_of(uid))}
        assert left == {(pod.podset, pod.rank) for pod in every[1::2]}
        world.cluster.finish(uid)
        await world.until_state(uid, State.FINISHED)
        await world.at_rest()


async def test_a_victim_has_a_notice_and_keeps_its_nodes_until_it_reports_that_it_is_ready(
    database_url: str,
) -> None:
    async with rig(database_url, 2) as world:
        await world.store.put_config(rules(queuectl={"evictionGrace": "1h"}))
        low = world.cluster.submit(gang("Job", "low", 2))
        await world.until_state(low, State.RUNNING)
        high = world.cluster.submit(gang("Job", "high", 2, "high"))

        def notice() -> str | None:
            annotations = document_of(world, low)["metadata"].get("annotations", {})
            requested: str | None = annotations.get("queuectl.dev/preempt-requested")
            return requested

        await world.until(notice, "the victim has its notice")
        leaving = await world.until_state(low, State.EVICTING)
        assert leaving.stop_at is not None
        assert notice() == time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(leaving.stop_at))
        assert not document_of(world, low)["spec"]["suspend"]
        assert len(live(world.cluster.pods_of(low))) == 2, "it has time to save its work"
        ready = {"metadata": {"annotations": {"queuectl.dev/preempt-ready": "true"}}}
        world.cluster.user_patch("Job", "default", "low", ready)
        await world.until_state(high, State.RUNNING)
        await world.until_state(low, State.PENDING)
        assert notice() is None, "the notice is removed"
        assert (
            "queuectl.dev/preempt-ready" not in document_of(world, low)["metadata"]["annotations"]
        )
        world.cluster.finish(high)
        await world.until_state(low, State.RUNNING)
        await world.at_rest()


async def test_a_victim_that_does_not_respond_is_suspended_when_its_time_is_over(
    database_url: str,
) -> None:
    async with rig(database_url, 2) as world:
        await world.store.put_config(rules(queuectl={"evictionGrace": "1s"}))
        low = world.cluster.submit(gang("Job", "low", 2))
        await world.until_state(low, State.RUNNING)
        await world.ask(low, Action.HOLD)
        leaving = await world.until_state(low, State.EVICTING)
        held = await world.until_state(low, State.HELD)
        assert leaving.stop_at is not None
        assert held.since >= leaving.stop_at


async def story(world: Rig) -> None:
    """A gang is held under notice, released, drained, deactivated while it drains, activated, and ends."""
    await world.store.put_config(rules(queuectl={"evictionGrace": "200ms"}))
    uid = world.cluster.submit(gang("Job", "train", 2))
    await world.until_state(uid, State.RUNNING)
    await world.ask(uid, Action.HOLD)
    held = await world.until_state(uid, State.HELD)
    await world.ask(uid, Action.RELEASE)
    again = await world.until_state(uid, State.RUNNING)
    assert again.queued_at == held.queued_at
    await stop_queue(world, "HoldAndDrain", 16)
    await until_reason(world, uid, State.PENDING, Code.QUEUE_STOPPED)
    await world.ask(uid, Action.DEACTIVATE)
    await world.ask(uid, Action.PRIORITY, 77)
    await world.until_state(uid, State.DEACTIVATED)
    await stop_queue(world, "None", 16)
    await world.ask(uid, Action.ACTIVATE)
    last = await world.until_state(uid, State.RUNNING)
    assert (last.priority, last.attempt, last.evictions) == (77, 3, 2)
    world.cluster.finish(uid)
    await world.until_state(uid, State.FINISHED)
    assert await world.store.commands() == ()
    messages = [line.reason.message for line in await world.store.history(uid)]
    for once in (
        "held by alice",
        "released by alice",
        "deactivated by alice",
        "activated by alice",
    ):
        assert messages.count(once) >= 1, once
    assert sum("changed to 77, by alice" in text for text in messages) == 1
    await world.at_rest()


@pytest.mark.timeout(600)
async def test_a_kill_at_any_step_of_it_changes_no_outcome(postgres: TestPostgres) -> None:
    await survives(postgres, story)


async def test_a_victim_is_evicted_when_its_protection_ends_without_another_event(
    database_url: str,
) -> None:
    async with rig(database_url, 2) as world:
        for document in configuration(16):
            if document["kind"] == "ClusterQueue":
                spec = {**document["spec"], "policy": {"minRuntimeSeconds": 2}}
                await world.store.put_config({**document, "spec": spec})
        low = world.cluster.submit(gang("Job", "low", 2))
        await world.until_state(low, State.RUNNING)
        high = world.cluster.submit(gang("Job", "high", 2, "high"))
        await world.until_state(high, State.RUNNING)
        entry = await world.entry(low)
        assert entry.evictions == 1


async def test_the_pods_of_a_running_gang_are_replaced_after_an_edit_of_its_flavor(
    database_url: str,
) -> None:
    """Its nodes do not have the new label. No new gang starts there."""
    async with rig(database_url, 2) as world:
        uid = world.cluster.submit(gang("Job", "train", 2))
        await world.until_state(uid, State.RUNNING)
        flavor = m.flavor("gpu", topology="gpus")
        flavor["spec"]["nodeLabels"] = {"pool": "b"}
        await world.store.put_config(flavor)
        assert world.loop is not None
        state = world.loop.leader_state
        await world.until(lambda: state.config.flavors["gpu"].node_labels, "the edit is known")
        lost = live(world.cluster.pods_of(uid))[0]
        world.cluster.delete_pod_of_user(lost.name)

        def replaced() -> bool:
            names = {pod.uid for pod in live(world.cluster.pods_of(uid))}
            return len(names) == 2 and lost.uid not in names

        await world.until(replaced, "the pod is replaced")
        assert (await world.until_state(uid, State.RUNNING)).evictions == 0
