"""ResourceClaims of pods: the devices that pods request by them, and who is charged for each."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from queuectl.devices.shared import ClaimKey, first_user
from queuectl.domain.devices import ClaimReference, ClaimSpec, PodDevices
from queuectl.domain.jobs import JobRecord
from queuectl.domain.ledger import Entry
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.workload import PodSet
from queuectl.state.devices import CLAIMS, TEMPLATES, ClaimName, DeviceMirror

# ---- Devices that the pods of a job request


def names_claims(job: JobRecord) -> bool:
    """Whether a pod of the job has resource claims."""
    return any(podset.claims for podset in job.podsets)


def all_resolved(job: JobRecord) -> bool:
    """Whether the devices of all its claims are known."""
    return all(podset.shape.devices is not None for podset in job.podsets if podset.claims)


def claiming(job: JobRecord, mirror: DeviceMirror) -> JobRecord:
    """The job with the devices that its pods request; the same object if they name no claim.

    If a claim cannot be planned, the job is blocked with the reason.
    """
    if not names_claims(job):
        return job
    podsets, reasons = [], list[Reason]()
    for podset in job.podsets:
        found, why = _resolved(job.namespace, podset, mirror)
        podsets.append(found)
        reasons += why
    return replace(
        job, podsets=tuple(podsets), forbidden=job.forbidden or next(iter(reasons), None)
    )


def _resolved(
    namespace: str, podset: PodSet, mirror: DeviceMirror
) -> tuple[PodSet, tuple[Reason, ...]]:
    """The podset with the devices that its claims request, or the reasons for which they cannot be planned.

    A podset without claims is the same object.
    """
    if not podset.claims:
        return podset, ()
    own, shared = [], []
    reasons: list[Reason] = []
    where = {"namespace": namespace, "podSet": podset.name}
    for reference in podset.claims:
        what, spec, error = _found(namespace, reference, mirror)
        reasons += [Reason(code, text, where) for code, text in _faults(what, spec, error, mirror)]
        if spec is None or not spec.requests:
            continue  # a claim without requests needs no device, and any number of pods can use it
        if reference.claim is not None:
            shared.append(reference.claim)
        else:
            own.append(spec)
    devices = None if reasons else PodDevices(tuple(own), tuple(shared))
    return replace(podset, shape=replace(podset.shape, devices=devices)), tuple(reasons)


def _found(
    namespace: str, reference: ClaimReference, mirror: DeviceMirror
) -> tuple[str, ClaimSpec | None, str | None]:
    """The object that is named, its request, and its error."""
    if reference.claim is not None:
        what = f"ResourceClaim {namespace}/{reference.claim}"
        claim = mirror.named_claim(namespace, reference.claim)
        return (what, None, None) if claim is None else (what, claim.content.spec, claim.error)
    what = f"ResourceClaimTemplate {namespace}/{reference.template}"
    template = mirror.template(namespace, reference.template or "")
    return (what, None, None) if template is None else (what, template.spec, template.error)


def _faults(
    what: str, spec: ClaimSpec | None, error: str | None, mirror: DeviceMirror
) -> Iterator[tuple[Code, str]]:
    if spec is None:
        yield Code.MISCONFIGURED, f"{what} does not exist"
    elif error is not None:
        yield Code.UNSUPPORTED, f"{what}: {error}"
    else:
        classes = {option.device_class for one in spec.requests for option in one.options}
        for name in sorted(classes - mirror.classes.keys()):
            yield Code.MISCONFIGURED, f"{what}: DeviceClass {name} does not exist"


class JobsWithClaims:
    """The jobs that name each ResourceClaimTemplate and ResourceClaim, so that a change of one concerns no other job."""

    def __init__(self) -> None:
        self._names: dict[str, frozenset[ClaimName]] = {}  # by uid of the job
        self._jobs: dict[ClaimName, set[str]] = {}  # their uids

    @property
    def uids(self) -> Collection[str]:
        """Of all jobs with a claim."""
        return self._names.keys()

    def of(self, name: ClaimName) -> Collection[str]:
        """The uids of the jobs that name this object."""
        return self._jobs.get(name, ())

    def put(self, job: JobRecord) -> None:
        """A job that is new or has changed."""
        names = frozenset(
            (CLAIMS, job.namespace, one.claim)
            if one.claim is not None
            else (TEMPLATES, job.namespace, one.template or "")
            for podset in job.podsets
            for one in podset.claims
        )
        if names != self._names.get(job.uid, frozenset()):
            self.drop(job.uid)
            if names:
                self._names[job.uid] = names
            for name in names:
                self._jobs.setdefault(name, set()).add(job.uid)

    def drop(self, uid: str) -> None:
        """Forget a deleted job."""
        for name in self._names.pop(uid, ()):
            self._jobs[name].discard(uid)
            if not self._jobs[name]:
                del self._jobs[name]


# ---- Users of each claim
#
# queuectl starts no gang whose claim another gang uses. But gangs that ran before queuectl was installed can share a claim. Its devices then
# count for the gang that started first, and when it has ended, for the next one.


class ClaimUsers:
    """Gangs that hold capacity, updated with each change of one."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._claims: dict[str, frozenset[ClaimKey]] = {}
        self._users: dict[ClaimKey, dict[str, float]] = {}

    def put(self, entry: Entry, job: JobRecord | None, *, holds: bool) -> frozenset[str]:
        """Take over the state of a gang.

        Args:
            entry: of the gang.
            job: None = it was deleted; the gang uses the same claims as before.
            holds: whether the gang holds capacity.

        Returns:
            Uids of other gangs that are charged for more or fewer claims now.
        """
        uid = entry.uid
        before = self._claims.get(uid, frozenset())
        after = before if job is None else _claims_of(job)
        after = after if holds and entry.placement is not None else frozenset()
        if not before and not after:
            return frozenset()
        concerned = sorted(before | after)
        charged = [self.charged(key) for key in concerned]
        self._replace(entry, before, after)
        now_charged = [self.charged(key) for key in concerned]
        changed = zip(charged, now_charged, strict=True)
        others = {one for pair in changed if pair[0] != pair[1] for one in pair if one is not None}
        return frozenset(others - {uid})

    def _replace(
        self, entry: Entry, before: frozenset[ClaimKey], after: frozenset[ClaimKey]
    ) -> None:
        uid = entry.uid
        for key in before:
            self._users[key].pop(uid, None)
            if not self._users[key]:
                del self._users[key]
        self._entries.pop(uid, None)
        self._claims.pop(uid, None)
        if after:
            self._entries[uid], self._claims[uid] = entry, after
            for key in after:
                self._users.setdefault(key, {})[uid] = started(entry)

    def charged(self, key: ClaimKey) -> str | None:
        """The gang that is charged for a claim; None if no gang uses it."""
        users = self._users.get(key)
        return first_user(users) if users else None

    def not_charged(self, uid: str) -> frozenset[ClaimKey]:
        """The claims of a gang for which another gang is charged."""
        return frozenset(key for key in self._claims.get(uid, ()) if self.charged(key) != uid)

    def entry(self, uid: str) -> Entry:
        """The state of a gang that uses claims."""
        return self._entries[uid]

    @property
    def uids(self) -> Mapping[str, Entry]:
        """All gangs that use claims."""
        return self._entries


def started(entry: Entry) -> float:
    """When the attempt of a gang started, unix seconds."""
    return entry.started_at or entry.since


def _claims_of(job: JobRecord) -> frozenset[ClaimKey]:
    def names() -> Iterator[str]:
        for podset in job.podsets:
            yield from podset.shared_claims

    return frozenset((job.namespace, name) for name in names())
