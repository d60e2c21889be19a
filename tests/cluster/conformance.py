"""The contract that the control loop relies on, for the real control plane and for the double.

A subclass defines the fixture ``world``. Tests name the condition that they wait for; the world has the timeout.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from queuectl.domain.admission import PodAdmission, created, refusal
from queuectl.domain.errors import ObjectGone, WriteConflict, WriteRefused
from queuectl.domain.fleet import Effect, Toleration
from queuectl.domain.jobs import JobOutcome, JobRecord, PodPhase, PodRecord
from queuectl.domain.limits import LimitRange
from queuectl.domain.quantity import CPU
from queuectl.domain.records import LeaderRecord
from queuectl.lifecycle.old_pods import SEEN_WITHIN
from queuectl.objects import keys
from queuectl.objects.kinds import KINDS
from queuectl.objects.kinds.pods import notice_patch, released, withdraw_patch
from queuectl.objects.kubernetes.pods import pin_patch
from tests.cluster.world import (
    RESIZED,
    RESOURCES,
    World,
    a_node,
    alive,
    forbidden_patch,
    patched,
    place,
    resized,
    start,
    stop,
    submitted,
)
from tests.doubles.admission import templates
from tests.support.jobs import ALL_KINDS, FIRST_KIND, batch_job, job_of, pytorch_job

ARRAY = keys.PREFIX + keys.ARRAY
ELASTIC, KUEUE_ELASTIC = (prefix + keys.ELASTIC_JOB for prefix in (keys.PREFIX, keys.KUEUE_PREFIX))


def limit_range(world: World) -> LimitRange | None:
    """The LimitRange of the test's namespace."""
    own = [r for r in world.view.limit_ranges.values() if r.namespace == world.namespace]
    return own[0].limit_range if own else None


def with_status(job: JobRecord, text: str) -> Mapping[str, Any]:
    return KINDS[job.kind].status_patch(job, text)


STATUSES = {
    "Pending: WaitingForQuota: not yet": False,
    "Held: AdmissionGated: it has gates": False,
    "Held: Held: by alice": True,
    "Evicting: Held: by alice": True,
    "Deactivated: RequeuingLimitExceeded: given up": True,
}
"""Texts of the status annotation, and whether the policies protect it from users."""


class ClusterConformance:
    """A mix-in for test classes with a fixture ``world``."""

    # ---- watch

    async def test_every_resource_is_listed_once_and_reported_as_synced(self, world: World) -> None:
        await world.until(lambda: set(world.view.synced) == RESOURCES, "all resources")
        assert len(world.view.synced) == len(RESOURCES)
        assert all(node.node.ready for node in world.view.nodes.values())

    async def test_after_catching_up_the_watch_shows_each_earlier_change(
        self, world: World
    ) -> None:
        for number in range(3):
            uid = await world.submit(batch_job(f"job-{number}", namespace=world.namespace))
            await world.cluster.catch_up()
            assert uid in world.view.jobs
            assert len(world.view.synced) == len(RESOURCES), "it announces no list twice"

    async def test_a_job_without_a_queue_is_not_managed(self, world: World) -> None:
        unlabeled = await world.submit(
            batch_job("unlabeled", queue=None, namespace=world.namespace)
        )
        await submitted(world, batch_job("ours", namespace=world.namespace))
        assert unlabeled not in world.view.jobs

    async def test_a_job_that_loses_its_queue_is_forgotten(self, world: World) -> None:
        document = batch_job("left", namespace=world.namespace)
        # A job without labels gets those of its template.
        document["metadata"]["labels"]["app"] = "x"
        job = await submitted(world, document)
        patch = {"metadata": {"labels": {keys.QUEUE_LABEL: None}}}
        await world.cluster.patch_job("Job", job.namespace, job.name, patch)
        await world.until(lambda: job.uid not in world.view.jobs, "the job to be forgotten")

    async def test_a_pod_of_an_unlabeled_job_is_seen(self, world: World) -> None:
        uid = await world.submit(batch_job("unlabeled", queue=None, namespace=world.namespace))
        await world.until(lambda: world.view.pods_of(uid), "the pod")
        assert world.view.pods_of(uid)[0].attempt == 0

    @ALL_KINDS
    async def test_pods_have_the_requests_of_their_templates_with_the_defaults_of_limit_ranges(
        self, world: World, kind: str
    ) -> None:
        items = [
            {"type": "Container", "max": {"cpu": "4"}, "defaultRequest": {"memory": "1Gi"}},
            {"type": "Pod", "max": {"cpu": "8"}, "maxLimitRequestRatio": {"cpu": "4"}},
        ]
        usual = {"metadata": {"name": "usual"}, "spec": {"limits": items}}
        await world.create("limitranges", usual)
        await world.until(lambda: limit_range(world), "the LimitRange")
        seen = limit_range(world)
        assert seen is not None
        job = await submitted(world, job_of(kind, "train", pods=2, namespace=world.namespace))
        declared = {podset.name: podset.shape.requests for podset in job.podsets}
        pods = await start(world, job, 1)
        made = {p.name: created(p, PodAdmission((seen,))).shape.requests for p in job.podsets}
        assert made != declared
        assert {pod.podset: pod.requests for pod in pods} == made

    async def test_pods_that_violate_a_limit_range_are_not_created(self, world: World) -> None:
        item = {"type": "Container", "min": {"cpu": "2"}}
        await world.create(
            "limitranges", {"metadata": {"name": "team"}, "spec": {"limits": [item]}}
        )
        await world.until(lambda: limit_range(world), "the LimitRange")
        seen = limit_range(world)
        assert seen is not None
        job = await submitted(world, batch_job("train", namespace=world.namespace))
        assert refusal(job.podsets, job.namespace, PodAdmission((seen,))) is not None
        await world.until(lambda: world.view.jobs[job.uid].drained, "confirmed suspension")
        await patched(world, job.uid, lambda now: KINDS["Job"].start_patch(now, 1, "Starting"))
        await asyncio.sleep(0.3)
        assert world.view.pods_of(job.uid) == []

    @ALL_KINDS
    async def test_pods_have_the_overhead_the_node_labels_and_the_tolerations_of_their_runtime_class(
        self, world: World, kind: str
    ) -> None:
        name = f"kata-{world.namespace}-{kind.lower()}"
        scheduling = {
            "nodeSelector": {"kata": "yes"},
            "tolerations": [{"key": "kata", "operator": "Exists", "effect": "NoSchedule"}],
        }
        runtime = {
            "apiVersion": "node.k8s.io/v1",
            "kind": "RuntimeClass",
            "metadata": {"name": name},
            "handler": "kata",
            "overhead": {"podFixed": {"cpu": "250m"}},
            "scheduling": scheduling,
        }
        await world.create("runtimeclasses", runtime)
        await world.until(lambda: name in world.view.runtime_classes, "the RuntimeClass")
        around = PodAdmission(runtime_classes={name: world.view.runtime_classes[name].content})
        document = job_of(kind, "train", pods=2, namespace=world.namespace)
        for _, template in templates(document):
            template["spec"]["runtimeClassName"] = name
        job = await submitted(world, document)
        assert refusal(job.podsets, job.namespace, around) is None
        declared = {podset.name: podset.shape for podset in job.podsets}
        made = {podset.name: created(podset, around).shape for podset in job.podsets}
        for pod in await start(world, job, 1):
            shape = made[pod.podset]
            assert pod.requests[CPU] == shape.requests[CPU]
            assert pod.requests[CPU] == declared[pod.podset].requests[CPU] + 250
            assert set(shape.rules.tolerations) <= set(pod.tolerations)

    async def test_pods_whose_runtime_class_does_not_exist_are_not_created(
        self, world: World
    ) -> None:
        document = batch_job("train", namespace=world.namespace)
        document["spec"]["template"]["spec"]["runtimeClassName"] = "absent"
        job = await submitted(world, document)
        assert refusal(job.podsets, job.namespace, PodAdmission()) is not None
        await world.until(lambda: world.view.jobs[job.uid].drained, "confirmed suspension")
        await patched(world, job.uid, lambda now: KINDS["Job"].start_patch(now, 1, "Starting"))
        await asyncio.sleep(0.3)
        assert world.view.pods_of(job.uid) == []

    @FIRST_KIND
    async def test_a_lost_connection_loses_no_change(self, world: World, kind: str) -> None:
        kept = await submitted(world, job_of(kind, "kept", pods=2, namespace=world.namespace))
        gone = await submitted(world, job_of(kind, "gone", pods=2, namespace=world.namespace))
        await world.interrupt()
        await world.delete_job(kind, "gone")
        added = await world.submit(job_of(kind, "added", pods=2, namespace=world.namespace))
        await world.until(
            lambda: {kept.uid, added} <= set(world.view.jobs) and gone.uid not in world.view.jobs,
            "the view to be correct again",
        )
        assert len(world.view.synced) == len(RESOURCES)

    # ---- the life cycle of a job

    @ALL_KINDS
    async def test_a_job_that_waits_for_itself_is_refused(self, world: World, kind: str) -> None:
        for listed in (f"{kind}/mine", f"Job/x, {kind.lower()}/mine:any"):
            document = job_of(kind, "mine", pods=2, namespace=world.namespace)
            document["metadata"]["annotations"] = {keys.PREFIX + keys.AFTER: listed}
            with pytest.raises(WriteRefused, match="which would wait for itself"):
                await world.submit(document)

    @ALL_KINDS
    async def test_a_job_that_depends_on_too_many_jobs_is_refused(
        self, world: World, kind: str
    ) -> None:
        document = job_of(kind, "mine", pods=2, namespace=world.namespace)
        listed = ",".join(f"Job/step-{number}" for number in range(101))
        document["metadata"]["annotations"] = {keys.PREFIX + keys.AFTER: listed}
        with pytest.raises(WriteRefused, match="lists more than 100 jobs"):
            await world.submit(document)

    @ALL_KINDS
    async def test_a_new_job_is_suspended_and_has_no_pods(self, world: World, kind: str) -> None:
        document = job_of(kind, "born", pods=3, namespace=world.namespace)
        document["spec"].setdefault("suspend", False)
        job = await submitted(world, document)
        assert (job.suspended, job.attempt, job.pods) == (True, 0, 3)
        await world.until(lambda: world.view.jobs[job.uid].drained, "confirmed suspension")
        assert not world.view.pods_of(job.uid)

    @ALL_KINDS
    async def test_the_users_priority_class_is_kept(self, world: World, kind: str) -> None:
        document = job_of(kind, "urgent", pods=2, namespace=world.namespace)
        name = "system-cluster-critical"
        for _, template in templates(document):
            template["spec"]["priorityClassName"] = name
        job = await submitted(world, document)
        assert job.pod_priority_class == name

    @ALL_KINDS
    async def test_a_resumed_job_gets_gated_pods_with_the_labels_of_the_gang(
        self, world: World, kind: str
    ) -> None:
        job = await submitted(world, job_of(kind, "starts", pods=3, namespace=world.namespace))
        pods = await start(world, job, 1)
        assert Counter(pod.podset for pod in pods) == {p.name: p.count for p in job.podsets}
        for podset in job.podsets:
            ranks = [pod.rank for pod in pods if pod.podset == podset.name]
            assert ranks == list(range(podset.count))
        assert all(pod.node is None and pod.pin is None for pod in pods)
        now = world.view.jobs[job.uid]
        assert (now.suspended, now.attempt) == (False, 1)

    @ALL_KINDS
    async def test_one_patch_pins_a_pod_and_removes_its_gate(self, world: World, kind: str) -> None:
        job = await submitted(world, job_of(kind, "placed", pods=2, namespace=world.namespace))
        pods = await start(world, job, 1)
        await place(world, pods, a_node(world))
        assert all(not pod.gated for pod in world.view.pods_of(job.uid))

    @pytest.mark.parametrize("operator", [{}, {"operator": "Equal"}], ids=["absent", "Equal"])
    async def test_a_pin_adds_tolerations_to_those_of_a_pod(
        self, world: World, operator: dict[str, str]
    ) -> None:
        """The API server compares the pod's own tolerations as they are stated."""
        own = {"key": "dedicated", "value": "training", "effect": "NoSchedule", **operator}
        document = batch_job("tolerant", namespace=world.namespace)
        document["spec"]["template"]["spec"]["tolerations"] = [own]
        [pod] = await start(world, await submitted(world, document), 1)
        added = Toleration("spot", "Exists", effect=Effect.NO_SCHEDULE)
        patch = pin_patch(pod, a_node(world), tolerations=[added])
        await world.cluster.patch_pod(pod.namespace, pod.name, patch)
        await world.until(lambda: not world.view.pods[pod.uid].gated, "the release")

    async def test_a_refusal_keeps_the_creation_time_of_the_gated_pod(self, world: World) -> None:
        job = await submitted(world, batch_job("refused", namespace=world.namespace))
        [pod] = await start(world, job, 1)
        made = await world.scheduled(pod)
        assert (made["status"], made["reason"]) == ("False", "SchedulingGated")
        await asyncio.sleep(1.1)  # times are in whole seconds
        await world.cluster.patch_pod(pod.namespace, pod.name, pin_patch(pod, "nowhere"))
        await world.until(lambda: world.view.pods[pod.uid].unschedulable, "a refusal")
        refused = await world.scheduled(pod)
        assert (refused["status"], refused["reason"]) == ("False", "Unschedulable")
        assert refused["lastTransitionTime"] == made["lastTransitionTime"]

    @ALL_KINDS
    async def test_a_suspended_job_loses_its_pods_and_can_start_again_on_other_nodes(
        self, world: World, kind: str
    ) -> None:
        job = await submitted(world, job_of(kind, "evicted", pods=2, namespace=world.namespace))
        await place(world, await start(world, job, 1), a_node(world))
        await stop(world, job, 1)
        await world.until(
            lambda: world.view.jobs[job.uid].drained and not world.view.pods_of(job.uid),
            "the deletion of the pods",
        )
        if job.counts_old_pods:
            await asyncio.sleep(SEEN_WITHIN)
        other = max(world.view.nodes)
        await place(world, await start(world, world.view.jobs[job.uid], 2), other)
        assert {pod.node for pod in alive(world, job.uid)} == {other}

    @ALL_KINDS
    async def test_suspension_is_confirmed_while_pods_still_terminate(
        self, world: World, kind: str
    ) -> None:
        job = await submitted(world, job_of(kind, "slow", pods=2, namespace=world.namespace))
        await place(world, await start(world, job, 1), a_node(world))
        world.pods_end(slowly=True)
        try:
            await stop(world, job, 1)
            await world.until(
                lambda: (
                    world.view.jobs[job.uid].drained
                    and all(pod.terminating for pod in world.view.pods_of(job.uid))
                ),
                "confirmed suspension and terminating pods",
            )
            assert len(alive(world, job.uid)) == 2
        finally:
            world.pods_end(slowly=False)
        await world.until(lambda: not alive(world, job.uid), "the deletion of the pods")

    @ALL_KINDS
    async def test_a_job_succeeds_when_its_pods_succeed(self, world: World, kind: str) -> None:
        job = await submitted(world, job_of(kind, "good", pods=2, namespace=world.namespace))
        await place(world, await start(world, job, 1), a_node(world))
        await world.finish(job.uid)
        await world.until(
            lambda: world.view.jobs[job.uid].outcome is JobOutcome.SUCCEEDED, "its success"
        )
        await world.until(
            lambda: {pod.phase for pod in world.view.pods_of(job.uid)} == {PodPhase.SUCCEEDED},
            "its pods to have succeeded, and still to exist",
        )

    @ALL_KINDS
    async def test_a_failure_that_the_job_controller_reports_is_final(
        self, world: World, kind: str
    ) -> None:
        options = {"backoff_limit": 0} if kind == "Job" else {}
        job = await submitted(
            world, job_of(kind, "bad", pods=2, namespace=world.namespace, **options)
        )
        pods = await start(world, job, 1)
        await place(world, pods, a_node(world))
        await world.fail(pods[-1])
        await world.until(lambda: world.view.jobs[job.uid].outcome is JobOutcome.FAILED, "failure")

    async def test_a_failed_pod_of_a_job_is_replaced_gated_and_of_the_same_attempt(
        self, world: World
    ) -> None:
        job = await submitted(world, batch_job("retry", pods=2, namespace=world.namespace))
        pods = await start(world, job, 1)
        await place(world, pods, a_node(world))
        await world.fail(pods[1])

        def replaced() -> list[PodRecord]:
            return [pod for pod in alive(world, job.uid) if pod.gated]

        await world.until(replaced, "a replacement")
        assert [(pod.attempt, pod.rank, pod.podset) for pod in replaced()] == [(1, 1, "main")]

    @ALL_KINDS
    async def test_the_pods_of_a_deleted_job_are_deleted(self, world: World, kind: str) -> None:
        job = await submitted(world, job_of(kind, "deleted", pods=2, namespace=world.namespace))
        await start(world, job, 1)
        await world.delete_job(kind, "deleted")
        await world.until(
            lambda: job.uid not in world.view.jobs and not world.view.pods_of(job.uid), "nothing"
        )

    async def test_pods_of_a_deleted_node_are_replaced_gated(self, world: World) -> None:
        job = await submitted(world, batch_job("orphan", pods=2, namespace=world.namespace))
        pods = await start(world, job, 1)
        lost, kept = a_node(world), max(world.view.nodes)
        await place(world, pods[:1], lost)
        await place(world, pods[1:], kept)
        await world.delete_node(lost)
        await world.until(lambda: lost not in world.view.nodes, "the deletion of the node")
        await world.until(
            lambda: (
                sorted((pod.rank, pod.gated) for pod in alive(world, job.uid))
                == [(0, True), (1, False)]
            ),
            "a gated replacement of rank 0",
        )

    @ALL_KINDS
    async def test_queuectl_can_move_a_pending_job_to_another_queue(
        self, world: World, kind: str
    ) -> None:
        job = await submitted(world, job_of(kind, "moved", pods=2, namespace=world.namespace))
        await patched(
            world, job.uid, lambda now: KINDS[kind].queue_patch(now, "Pending: QueueSet", "other")
        )
        await world.until(lambda: world.view.jobs[job.uid].queue == "other", "the other queue")
        assert world.view.jobs[job.uid].suspended
        stale = KINDS[kind].queue_patch(job, "", "third")
        with pytest.raises(WriteConflict):
            await world.cluster.patch_job(kind, job.namespace, job.name, stale)

    # ---- compare-and-swap

    @ALL_KINDS
    async def test_a_replayed_start_is_a_conflict(self, world: World, kind: str) -> None:
        job = await submitted(world, job_of(kind, "again", pods=2, namespace=world.namespace))
        patch, _ = await patched(
            world, job.uid, lambda now: KINDS[kind].start_patch(now, 1, "Starting")
        )
        with pytest.raises(WriteConflict):
            await world.cluster.patch_job(kind, job.namespace, job.name, patch)

    @ALL_KINDS
    async def test_a_start_withdrawn_before_it_arrives_fails(self, world: World, kind: str) -> None:
        job = await submitted(world, job_of(kind, "withdrawn", pods=2, namespace=world.namespace))
        await world.until(lambda: world.view.jobs[job.uid].drained, "confirmed suspension")
        late = KINDS[kind].start_patch(world.view.jobs[job.uid], 1, "Starting")
        await stop(world, job, 1)
        with pytest.raises(WriteConflict):
            await world.cluster.patch_job(kind, job.namespace, job.name, late)
        await world.until(
            lambda: world.view.jobs[job.uid].attempt == 1, "the attempt number to be used"
        )
        assert world.view.jobs[job.uid].suspended

    async def test_a_replayed_pin_is_a_conflict(self, world: World) -> None:
        job = await submitted(world, batch_job("pinned", namespace=world.namespace))
        [pod] = await start(world, job, 1)
        patch = pin_patch(pod, a_node(world))
        await place(world, [pod], a_node(world))
        with pytest.raises(WriteConflict):
            await world.cluster.patch_pod(pod.namespace, pod.name, patch)

    async def test_a_pod_is_evicted_only_as_it_was_observed(self, world: World) -> None:
        job = await submitted(world, batch_job("evicted", namespace=world.namespace))
        [pod] = await start(world, job, 1)
        place = (pod.namespace, pod.name, pod.uid)
        with pytest.raises(WriteConflict):
            await world.cluster.evict_pod(*place, pod.version - 1)
        await world.cluster.evict_pod(*place, pod.version)
        await world.until(lambda: pod.uid not in world.view.pods, "the end of the pod")
        with pytest.raises(ObjectGone):
            await world.cluster.evict_pod(*place, pod.version)

    @pytest.mark.parametrize("budgets", [1, 2])
    async def test_a_disruption_budget_refuses_the_eviction_of_a_running_pod(
        self, world: World, budgets: int
    ) -> None:
        job = await submitted(world, batch_job("kept", namespace=world.namespace))
        [pod] = await start(world, job, 1)
        await world.protect(pod, budgets)
        await place(world, [pod], a_node(world))
        while True:
            pod = world.view.pods[pod.uid]
            try:
                await world.cluster.evict_pod(pod.namespace, pod.name, pod.uid, pod.version)
            except WriteConflict:
                seen = pod.version
                await world.until(lambda: world.view.pods[pod.uid].version > seen, "a newer pod")  # noqa: B023
            except WriteRefused as error:
                refused = str(error)
                break
        assert "udget" in refused
        assert not world.view.pods[pod.uid].terminating

    async def test_the_attempt_is_written_on_a_pod_with_and_without_its_release(
        self, world: World
    ) -> None:
        job = await submitted(world, batch_job("marked", namespace=world.namespace))
        [pod] = await start(world, job, 0)  # as an array is started
        index = replace(job, uid=f"{job.uid}.000")
        late = released(pin_patch(pod, a_node(world)), pod, index, 7)
        withdrawn = withdraw_patch(pod, index.uid, 7)
        await world.cluster.patch_pod(pod.namespace, pod.name, withdrawn)
        await world.until(lambda: world.view.pods[pod.uid].attempt == 7, "the attempt")
        assert world.view.pods[pod.uid].gated
        with pytest.raises(WriteConflict):
            await world.cluster.patch_pod(pod.namespace, pod.name, late)
        pod = world.view.pods[pod.uid]
        release = released(pin_patch(pod, a_node(world)), pod, index, 8)
        await world.cluster.patch_pod(pod.namespace, pod.name, release)
        await world.until(lambda: not world.view.pods[pod.uid].gated, "the release")
        pod = world.view.pods[pod.uid]
        assert (pod.attempt, pod.preempt_requested) == (8, "")
        while not world.view.pods[pod.uid].preempt_requested:
            seen = world.view.pods[pod.uid]
            noticed = notice_patch(seen, "2030-01-01T00:00:00Z")
            with contextlib.suppress(WriteConflict):
                await world.cluster.patch_pod(pod.namespace, pod.name, noticed)
            await world.until(lambda: world.view.pods[pod.uid].version > seen.version, "a change")  # noqa: B023

    async def test_a_patch_answers_with_the_version_that_the_watch_then_shows(
        self, world: World
    ) -> None:
        job = await submitted(world, batch_job("version", namespace=world.namespace))
        await world.until(lambda: world.view.jobs[job.uid].drained, "confirmed suspension")
        _, version = await patched(
            world, job.uid, lambda now: KINDS["Job"].status_patch(now, "Pending: Queued")
        )
        assert version > job.version
        await world.until(lambda: world.view.jobs[job.uid].version >= version, "that version")
        assert world.view.jobs[job.uid].status == "Pending: Queued"

    async def test_a_patch_of_a_deleted_object_reports_the_deletion(self, world: World) -> None:
        job = await submitted(world, batch_job("gone", namespace=world.namespace))
        [pod] = await start(world, job, 1)
        await world.delete_job("Job", "gone")
        await world.until(lambda: job.uid not in world.view.jobs, "the deletion of the job")
        await world.until(lambda: pod.uid not in world.view.pods, "the deletion of its pod")
        patch = KINDS["Job"].status_patch(job, "Pending")
        with pytest.raises(ObjectGone):
            await world.cluster.patch_job("Job", job.namespace, job.name, patch)
        with pytest.raises(ObjectGone):
            await world.cluster.patch_pod(pod.namespace, pod.name, pin_patch(pod, a_node(world)))

    async def test_a_successor_of_the_same_name_is_not_patched(self, world: World) -> None:
        job = await submitted(world, batch_job("twin", namespace=world.namespace))
        await world.delete_job("Job", "twin")
        await world.until(lambda: job.uid not in world.view.jobs, "the deletion of the first job")
        await submitted(world, batch_job("twin", namespace=world.namespace))
        patch = KINDS["Job"].start_patch(job, 1, "Starting")
        with pytest.raises(ObjectGone):
            await world.cluster.patch_job("Job", job.namespace, job.name, patch)

    # ---- permissions

    @ALL_KINDS
    @pytest.mark.parametrize(
        "what", ["resume", "ungate the template", "take the label off", "change the queue", "forge"]
    )
    async def test_a_user_may_not(self, world: World, kind: str, what: str) -> None:
        job = await submitted(world, job_of(kind, "mine", pods=2, namespace=world.namespace))
        with pytest.raises(WriteRefused):
            await world.user_patch(kind, "mine", forbidden_patch(kind, what))
        assert not world.view.pods_of(job.uid)

    @ALL_KINDS
    async def test_a_user_may_suspend_a_running_job(self, world: World, kind: str) -> None:
        job = await submitted(world, job_of(kind, "mine", pods=2, namespace=world.namespace))
        await start(world, job, 1)
        patch = {"suspend": True} if kind == "Job" else {"runPolicy": {"suspend": True}}
        await world.user_patch(kind, "mine", {"spec": patch})
        await world.until(lambda: world.view.jobs[job.uid].suspended, "suspension")

    @ALL_KINDS
    async def test_a_user_may_not_change_the_pods_of_a_running_job(
        self, world: World, kind: str
    ) -> None:
        job = await submitted(world, job_of(kind, "mine", pods=2, namespace=world.namespace))
        await start(world, job, 1)
        for how in RESIZED:
            with pytest.raises(WriteRefused):
                await world.user_patch(kind, "mine", {"spec": resized(kind, how)})

    @pytest.mark.parametrize("mark", [ARRAY, ELASTIC, KUEUE_ELASTIC])
    async def test_a_user_changes_the_pods_of_a_running_array_or_elastic_job_and_it_stays_one(
        self, world: World, mark: str
    ) -> None:
        document = batch_job("mine", pods=3, namespace=world.namespace)
        array = {**document["metadata"], "annotations": {mark: "true"}}
        job = await submitted(world, {**document, "metadata": array})
        await start(world, job, 1)
        await world.user_patch("Job", "mine", {"spec": {"parallelism": 1}})
        for change in ({mark: None}, {keys.BASE_COUNT: "2"}, {keys.ORIGINAL_PARALLELISM: "9"}):
            with pytest.raises(WriteRefused):
                await world.user_patch("Job", "mine", {"metadata": {"annotations": change}})

    async def test_a_running_gang_does_not_become_an_array(self, world: World) -> None:
        job = await submitted(world, batch_job("mine", pods=2, namespace=world.namespace))
        await start(world, job, 1)
        change = {"metadata": {"annotations": {ARRAY: "true"}}, "spec": {"parallelism": 1}}
        with pytest.raises(WriteRefused):
            await world.user_patch("Job", "mine", change)

    @pytest.mark.parametrize("what", ["drop the gate", "choose the node", "change the attempt"])
    async def test_a_user_may_not_change_a_gated_pod(self, world: World, what: str) -> None:
        job = await submitted(world, batch_job("mine", namespace=world.namespace))
        [pod] = await start(world, job, 1)
        patches: dict[str, dict[str, Any]] = {
            "drop the gate": {"spec": {"schedulingGates": []}},
            "choose the node": {"spec": {"nodeSelector": {"kubernetes.io/hostname": "n"}}},
            "change the attempt": {"metadata": {"labels": {keys.ATTEMPT_LABEL: "9"}}},
        }
        with pytest.raises(WriteRefused):
            await world.user_patch("Pod", pod.name, patches[what])

    @ALL_KINDS
    async def test_an_owner_may_not_change_the_status_of_a_held_workload(
        self, world: World, kind: str
    ) -> None:
        """After a loss of the database it holds the workload again."""
        job = await submitted(world, job_of(kind, "mine", pods=2, namespace=world.namespace))
        other = {"metadata": {"annotations": {keys.STATUS_ANNOTATION: "Pending: Queued"}}}
        gone = {"metadata": {"annotations": {keys.STATUS_ANNOTATION: None}}}
        for status, fixed in STATUSES.items():
            await patched(world, job.uid, partial(with_status, text=status))
            for change in (other, gone):
                with pytest.raises(WriteRefused) if fixed else contextlib.nullcontext():
                    await world.user_patch(kind, "mine", change)
            await world.user_patch(kind, "mine", {"metadata": {"labels": {"other": "label"}}})

    async def test_an_added_template_has_no_attempt(self, world: World) -> None:
        document = pytorch_job("grows", workers=1, namespace=world.namespace)
        worker = document["spec"]["pytorchReplicaSpecs"].pop("Worker")
        gates = [{"name": keys.GATE}]
        ours = {"schedulingGates": gates, "priorityClassName": keys.POD_PRIORITY_CLASS}
        worker["template"] = {"metadata": {}, "spec": {**worker["template"]["spec"], **ours}}
        job = await submitted(world, document)
        patch = {"spec": {"pytorchReplicaSpecs": {"Worker": worker}}}
        for key in (keys.ATTEMPT_LABEL, keys.PODSET_LABEL, keys.WORKLOAD_LABEL):
            worker["template"]["metadata"] = {"labels": {key: "7"}}
            with pytest.raises(WriteRefused, match="only queuectl writes"):
                await world.user_patch("PyTorchJob", "grows", patch)
        worker["template"]["metadata"] = {"labels": {"app": "x"}}
        await world.user_patch("PyTorchJob", "grows", patch)
        await world.until(lambda: len(world.view.jobs[job.uid].podsets) > 1, "the larger job")
        assert world.view.jobs[job.uid].attempt == 0

    async def test_labels_of_queuectl_and_kueue_must_agree(self, world: World) -> None:
        document = batch_job("torn", namespace=world.namespace)
        document["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "another"
        with pytest.raises(WriteRefused, match="keep one of them"):
            await world.submit(document)

    async def test_kueues_label_alone_is_sufficient(self, world: World) -> None:
        document = batch_job("kueue", queue=None, namespace=world.namespace)
        document["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "theirs"
        job = await submitted(world, document)
        assert (job.queue, job.suspended) == ("theirs", True)

    async def test_all_policies_are_in_force(self, world: World) -> None:
        assert await world.cluster.probe_policies() == []

    # ---- Events, leader election

    async def test_an_event_reaches_the_user(self, world: World) -> None:
        job = await submitted(world, batch_job("job", namespace=world.namespace))
        await world.cluster.create_event(job, "Warning", "Misconfigured", "no such queue: main")
        events = await world.events_of(job.uid)
        assert ("Warning", "Misconfigured", "no such queue: main") in events

    async def test_the_lease_is_taken_only_over_its_latest_version(self, world: World) -> None:
        found = await world.cluster.read_leader()
        mine = await world.cluster.write_leader(LeaderRecord("a", 7, 1000.0, 15, "", 900), found)
        assert await world.cluster.read_leader() == mine
        assert (mine.holder, mine.epoch, mine.duration, mine.accounted) == ("a", 7, 15, 900)
        theirs = await world.cluster.write_leader(LeaderRecord("b", 8, 1001.0, 15, ""), mine)
        for stale in (mine, None):
            with pytest.raises(WriteConflict):
                await world.cluster.write_leader(LeaderRecord("a", 9, 1002.0, 15, ""), stale)
        assert await world.cluster.read_leader() == theirs
