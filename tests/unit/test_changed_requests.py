"""A change of a LimitRange or of a ResourceClaimTemplate concerns the pending jobs of its namespace whose requests differ by it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from queuectl.domain.admission import PodAdmission
from queuectl.domain.devices import ClaimReference
from queuectl.domain.jobs import JobRecord
from queuectl.domain.limits import LimitRange
from queuectl.domain.records import Deleted, LimitRangeRecord, NamespaceRecord, Upserted
from queuectl.domain.request_rules import ContainerNeeds, PodNeeds
from queuectl.domain.rules import AdmissionPlugin
from queuectl.state import mirror as mirror_module
from queuectl.state.admission import AdmissionMirror
from queuectl.state.mirror import Mirror
from queuectl.state.pod_groups import under
from tests.unit.test_state import JOB
from tests.unit.test_state_devices import CLASSED, claim, claimed, spec, template

[PODSET] = JOB.podsets
OPEN = replace(PODSET, needs=PodNeeds((ContainerNeeds(),)))
"""Its container states no requests, so a LimitRange gives it some."""
STATED = replace(
    PODSET, needs=PodNeeds((ContainerNeeds(requests=(("cpu", 5),), limits=(("cpu", 5),)),))
)


def limits(namespace: str, version: int, cpu: int) -> Upserted:
    """A LimitRange that gives a request to each container without one."""
    found = LimitRange("limits", requests=(("cpu", cpu),))
    return Upserted(LimitRangeRecord(namespace, f"limits-{namespace}", version, found))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Uids of the jobs whose requests are computed."""
    uids: list[str] = []

    def counted(job: JobRecord, around: PodAdmission) -> JobRecord:
        uids.append(job.uid)
        return under(job, around)

    monkeypatch.setattr(mirror_module, "under", counted)
    return uids


def observed(*jobs: JobRecord) -> Mirror:
    """A copy of the cluster in which no job differs since its last observation."""
    made = Mirror({"jobs": "Job"})
    made.apply([Upserted(job) for job in jobs])
    return settled(made)


def settled(mirror: Mirror) -> Mirror:
    mirror.touched.clear()
    mirror.edited.clear()
    return mirror


def test_a_limit_range_concerns_the_jobs_of_its_namespace(asked: list[str]) -> None:
    mirror = observed(replace(JOB, podsets=(OPEN,)), replace(JOB, namespace="b", uid="u2"))
    asked.clear()
    mirror.apply([limits("a", 1, 3)])
    assert (asked, mirror.touched, mirror.edited) == (["u1"], {"u1"}, {"u1"})
    assert mirror.jobs["u1"].podsets[0].shape.requests["cpu"] == 3


def test_the_jobs_of_a_large_namespace_are_asked_in_several_batches(asked: list[str]) -> None:
    mirror = Mirror({"jobs": "Job"}, most_asked=2)
    jobs = [replace(JOB, uid=f"u{number}", podsets=(OPEN,)) for number in range(5)]
    mirror.apply([Upserted(job) for job in jobs])
    settled(mirror)
    asked.clear()
    assert len(mirror.apply([limits("a", 1, 3)])) == 2
    gone = next(uid for uid in mirror.jobs if uid not in asked)
    mirror.apply([Deleted("jobs", gone, 9)])
    while mirror.unfinished:
        mirror.apply(())
    assert (len(asked), gone in asked) == (4, False)
    assert {job.podsets[0].shape.requests["cpu"] for job in mirror.jobs.values()} == {3}


@pytest.mark.sets_aside
def test_jobs_whose_requests_cannot_be_computed_leave_no_batch_unfinished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mirror = Mirror({"jobs": "Job"}, most_asked=2)
    jobs = [replace(JOB, uid=f"u{number}", podsets=(OPEN,)) for number in range(5)]
    mirror.apply([Upserted(job) for job in jobs])

    def fails(_: JobRecord, __: PodAdmission) -> JobRecord:
        raise ArithmeticError

    monkeypatch.setattr(mirror_module, "under", fails)
    mirror.apply([limits("a", 1, 3)])
    batches = 0
    while mirror.unfinished:
        mirror.apply(())
        batches += 1
    assert batches == 2


def test_a_limit_range_with_the_same_values_concerns_no_job(asked: list[str]) -> None:
    mirror = observed(replace(JOB, podsets=(OPEN,)))
    mirror.apply([limits("a", 1, 3)])
    settled(mirror)
    asked.clear()
    mirror.apply([limits("a", 2, 3)])
    assert (asked, mirror.touched) == ([], set())


def test_limit_ranges_of_many_namespaces_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[str]()
    real = AdmissionMirror._ranges

    def counted(self: AdmissionMirror) -> object:
        read.extend(self.limit_ranges)
        return real(self)

    monkeypatch.setattr(AdmissionMirror, "_ranges", counted)
    mirror = observed(replace(JOB, podsets=(OPEN,)))
    mirror.apply([limits(f"ns-{number}", 1, 3) for number in range(100)])
    assert len(read) == 100
    mirror.apply([limits("ns-0", 2, 3)])
    assert len(read) == 100, "it has the same values"


def test_a_namespace_that_is_created_again_selects_no_nodes_of_the_one_before() -> None:
    mirror = observed(JOB)
    selectors = ((AdmissionPlugin.POD_NODE_SELECTOR, (("zone", "a"),)),)
    mirror.apply([Upserted(NamespaceRecord("a", 1, selectors=selectors))])
    assert mirror.admission.selectors == {"a": selectors}
    mirror.apply([Deleted("namespaces", "a", 2)])
    assert mirror.admission.selectors == {}


@pytest.mark.sets_aside
def test_a_job_whose_requests_cannot_be_computed_concerns_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mirror = observed(*(replace(JOB, uid=uid, podsets=(OPEN,)) for uid in ("u1", "u2", "u3")))
    now, poisoned = [100.0], ["u1", "u2"]
    mirror.containment.clock = lambda: now[0]

    def failing(job: JobRecord, around: PodAdmission) -> JobRecord:
        if job.uid in poisoned:
            raise RuntimeError(job.uid)
        return under(job, around)

    monkeypatch.setattr(mirror_module, "under", failing)
    mirror.apply([limits("a", 1, 3), Upserted(NamespaceRecord("b", 1))])
    assert (mirror.generation, set(mirror.jobs)) == (0, {"u1", "u2", "u3"})
    assert mirror.jobs["u3"].podsets[0].shape.requests["cpu"] == 3
    assert [one.ref for one in mirror.containment] == ["Job/a/train"] * 2
    assert not mirror.unreadable, "the LimitRange is in force"
    poisoned.clear()
    mirror.apply([Deleted("jobs", "u2", 9)])
    now[0] += 1000
    mirror.apply([Upserted(NamespaceRecord("b", 2))])
    assert mirror.jobs["u1"].podsets[0].shape.requests["cpu"] == 3
    assert mirror.containment.empty


def test_a_job_with_the_same_requests_as_before_is_not_observed_again() -> None:
    mirror = observed(replace(JOB, podsets=(STATED,)))
    before = settled(mirror).jobs["u1"]
    mirror.apply([limits("a", 1, 3)])
    assert mirror.jobs["u1"] is before
    assert mirror.touched == set()


def test_a_job_that_is_deleted_and_created_again_in_another_namespace_follows_that_one() -> None:
    mirror = observed(replace(JOB, podsets=(OPEN,)))
    mirror.apply([Deleted("jobs", "u1", 8)])
    mirror.apply([Upserted(replace(JOB, namespace="b", version=9, podsets=(OPEN,)))])
    settled(mirror)
    mirror.apply([limits("a", 1, 3)])
    assert mirror.touched == set()
    mirror.apply([limits("b", 1, 3)])
    assert mirror.touched == {"u1"}


def naming(uid: str, **named: str) -> JobRecord:
    """A job whose pods have a claim."""
    return replace(claimed(JOB, ClaimReference("gpus", **named)), uid=uid, name=uid)


def test_a_template_concerns_the_jobs_that_name_it(asked: list[str]) -> None:
    job = naming("u1", template="t")
    others = (
        replace(job, namespace="b", uid="u2"),
        replace(JOB, uid="u3"),
        naming("u4", template="s"),
        naming("u5", claim="t"),
    )
    mirror = observed(job, *others)
    asked.clear()
    mirror.apply([Upserted(template("t", spec()))])
    assert (asked, mirror.touched) == (["u1"], {"u1"})
    settled(mirror)
    asked.clear()
    mirror.apply([Upserted(template("t", spec(), version=2))])
    assert (asked, mirror.touched) == ([], set()), "it requests the same"
    mirror.apply([Deleted("resourceclaimtemplates", "t-t", 3)])
    assert asked == ["u1"]


def test_a_claim_concerns_the_jobs_that_name_it(asked: list[str]) -> None:
    mirror = observed(naming("u1", claim="c"), naming("u2", claim="d"), naming("u3", template="c"))
    asked.clear()
    mirror.apply([Upserted(claim(None, None, name="c"))])
    assert (asked, mirror.touched) == (["u1"], {"u1"})
    asked.clear()
    named = mirror.devices.named_claims
    mirror.apply([Upserted(claim(None, None, name="c", version=2))])
    assert asked == []
    assert mirror.devices.named_claims is named
    mirror.apply([Deleted("resourceclaims", "c-c", 3)])
    assert asked == ["u1"]


def test_a_job_follows_the_claims_that_it_names_now(asked: list[str]) -> None:
    mirror = observed(naming("u1", template="t"))
    mirror.apply([Upserted(replace(naming("u1", template="s"), version=JOB.version + 1))])
    asked.clear()
    mirror.apply([Upserted(template("t", spec()))])
    assert asked == []
    mirror.apply([Upserted(template("s", spec()))])
    assert asked == ["u1"]
    mirror.apply([Deleted("jobs", "u1", 9), Deleted("resourceclaimtemplates", "t-s", 9)])
    assert asked == ["u1"]


def test_a_class_that_is_created_or_deleted_concerns_the_jobs_with_claims(asked: list[str]) -> None:
    mirror = observed(naming("u1", template="t"), replace(JOB, uid="u2"))
    mirror.apply([Upserted(template("t", spec()))])
    asked.clear()
    mirror.apply([Upserted(CLASSED)])
    assert asked == ["u1"]
    changed = replace(CLASSED.content, extended_resource=None)
    mirror.apply([Upserted(replace(CLASSED, version=2, content=changed))])
    assert asked == ["u1"], "requests name classes only"
    mirror.apply([Deleted("deviceclasses", "gpu", 3)])
    assert asked == ["u1", "u1"]
