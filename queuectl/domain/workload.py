"""The request of a gang: podsets, their shapes and their topology."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fractions import Fraction

from queuectl.domain.devices import ClaimReference, PodDevices, stands_for_claims
from queuectl.domain.fleet import NodeRules
from queuectl.domain.gpus import BY_NAME, MOST_GPUS, GpuFraction, GpuWeights, PodGpus, SharedGpus
from queuectl.domain.quantity import NOTHING, Resources, total
from queuectl.domain.request_rules import PodNeeds


class TopologyMode(StrEnum):
    REQUIRED = "Required"
    PREFERRED = "Preferred"
    UNCONSTRAINED = "Unconstrained"


@dataclass(frozen=True, slots=True)
class Slice:
    """Every ``size`` consecutive ranks share one domain of ``level`` (a node label of the topology)."""

    level: str
    size: int


@dataclass(frozen=True, slots=True)
class TopologyRequest:
    """Where a podset's pods want to be together.

    Attributes:
        mode: how binding ``level`` is.
        level: node label of a topology level; None for Unconstrained.
        slices: coarse to fine, at most three; each finer size divides the coarser one, each size the podset's count.
        balanced: pods (whole slices, if any) are spread evenly over the domains used one level below the domain that
            holds the podset: their numbers differ by at most one, over the fewest domains for which that is possible.
    """

    mode: TopologyMode
    level: str | None = None
    slices: tuple[Slice, ...] = ()
    balanced: bool = False

    @property
    def levels(self) -> tuple[str, ...]:
        """Every level it names, its own first."""
        own = () if self.level is None else (self.level,)
        return (*own, *(s.level for s in self.slices if s.level not in own))


@dataclass(frozen=True, slots=True)
class PodShape:
    """One pod: effective requests (sidecars, init containers and overhead included; ``pods`` = 1) and node rules.

    Two pods of equal shape are interchangeable for placement. Hashable.

    ``incidental`` names resources that only machinery around the pod asks for (an operator's init container): nodes must
    have them, but a queue need not cover them. ``devices``: None = it requests none by claims. ``charged``: the part of ``requests`` that only
    queues are charged for devices, and that the pod itself does not request.
    """

    requests: Resources
    rules: NodeRules = NodeRules()
    incidental: frozenset[str] = frozenset()
    devices: PodDevices | None = None
    charged: Resources = NOTHING


@dataclass(frozen=True, slots=True)
class PodSet:
    """``count`` equal pods. Podsets that name the same ``group`` share one domain at the group's required level.

    ``count``: at least 1; those who read objects leave out podsets without pods.
    ``min_count``: the gang may start with fewer pods of this podset, down to so many; None = all or nothing.
    ``limits``: the largest CPU, memory and ephemeral storage that one pod can use, where it sets them; ResourceQuotas count it.
    ``overhead``: of the RuntimeClass of its pods, which ``shape`` and ``limits`` include; their quality of service class depends on it.
    ``needs``, ``rules``: the containers of its template, and its node rules; ``shape``, ``limits`` and ``overhead`` follow from them, and from
    the additions of :mod:`queuectl.domain.admission`. ``path``: of its template in its object, for messages.
    ``larger_requests``: the requests of pods of an earlier start that were larger than those of the template, because webhooks had changed them.
    ``claims``: the resource claims that its template names; ``shape.devices`` follows from them.
    ``shared_gpus``: None = the rule of its ClusterQueue.
    ``gpu_fraction``: a request that no scheduler here can fulfill, so the gang does not start.
    ``one_numa_node``: each pod gets its CPUs, memory and devices from one NUMA node of its node.
    ``has_deadline``: its pods have ``activeDeadlineSeconds``; scopes of ResourceQuotas depend on it.
    ``sized``: the GPUs of its pods; None = as the names of its resources state.
    ``labels``, ``annotations``: of its template.
    """

    name: str
    count: int
    shape: PodShape
    topology: TopologyRequest | None = None
    group: str | None = None
    min_count: int | None = None
    limits: Resources = NOTHING
    overhead: Resources = NOTHING
    needs: PodNeeds | None = field(default=None, compare=False, repr=False)
    rules: NodeRules = field(default=NodeRules(), compare=False, repr=False)
    path: str = field(default="", compare=False, repr=False)
    larger_requests: Resources = field(default=NOTHING, compare=False, repr=False)
    claims: tuple[ClaimReference, ...] = ()
    shared_gpus: SharedGpus | None = None
    gpu_fraction: GpuFraction | None = None
    one_numa_node: bool = False
    has_deadline: bool = False
    sized: PodGpus | None = None
    labels: tuple[tuple[str, str], ...] = field(default=(), compare=False, repr=False)
    annotations: tuple[tuple[str, str], ...] = field(default=(), compare=False, repr=False)

    @property
    def gpus(self) -> PodGpus:
        """The GPUs of its pods."""
        return self.sized or PodGpus(BY_NAME.counted(self.shape.requests))

    @property
    def shared_claims(self) -> tuple[str, ...]:
        """Names of the ResourceClaims that its pods share."""
        return self.shape.devices.shared if self.shape.devices is not None else ()

    @property
    def requests(self) -> Resources:
        """Of all its pods together."""
        return self.shape.requests * self.count

    @property
    def slice_size(self) -> int:
        """Consecutive ranks that share one domain; 1 without slices."""
        slices = self.topology.slices if self.topology is not None else ()
        return slices[0].size if slices else 1

    def reduced(self, count: int) -> PodSet:
        """The podset with at most so many pods."""
        if count >= self.count:
            return self
        least = self.min_count if self.min_count is not None and self.min_count < count else None
        return replace(self, count=count, min_count=least)


def slots_left(count: int, ended: Collection[int], size: int) -> dict[int, int]:
    """The groups of ``size`` consecutive ranks below ``count`` that have not ended as a whole, with their places among those.

    A gang that starts again requests the slots of these groups, so that the others in a slice still share its domain.
    """
    groups = sorted({rank // size for rank in range(count) if rank not in ended})
    return {group: place for place, group in enumerate(groups)}


@dataclass(frozen=True, slots=True)
class Duration:
    """How long one attempt of a gang runs, as planning assumes.

    Attributes:
        seconds: from the start of the attempt.
        enforced: the controller ends the gang then; otherwise an attempt can run longer.
        longest: if ``seconds`` are learned, the time in which all earlier gangs like it ended, as far as they are kept; None =
            they are not learned.
    """

    seconds: float
    enforced: bool = False
    longest: float | None = None


@dataclass(frozen=True, slots=True)
class Growth:
    """For a gang of one pod: the gang of an elastic job that the pod extends.

    Attributes:
        base: uid of that gang.
        rank: of the pod. Higher ranks are evicted first.
        rules: of the pod itself, without those that it has from the placement of its gang; None = it has no others.
    """

    base: str
    rank: int
    rules: NodeRules | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """A gang in a queue: identity, place in the order, and what it asks.

    Attributes:
        uid: of the user's object; offline input without one gets ``kind/namespace/name``.
        queue: LocalQueue named by the object, or None when it names none (then it has no quota; offline only).
        priority: larger is earlier.
        queued_at: unix seconds; a preempted workload keeps it.
        preemptible: False opts it out of preemption, as far as its ClusterQueue allows (``preemption_opt_out``).
        preempts: False: it evicts no gang, whatever its ClusterQueue allows.
        user: the submitter, where usage is grouped by user; None = unknown.
        duration: of an attempt that starts now; None = unknown.
        growth: of a pod that extends an elastic gang. It starts only while no gang before it in its queue waits, it evicts no gang,
            and it holds back no gang.
        claims: names of the ResourceClaims that its pods share; only in a snapshot with device rows.
        charged_queue: of a gang that holds capacity, the ClusterQueue that is charged for it: that of its start, wherever its LocalQueue
            leads now. None = that of its LocalQueue.
    """

    uid: str
    kind: str
    namespace: str
    name: str
    podsets: tuple[PodSet, ...]
    queue: str | None = None
    priority: int = 0
    queued_at: float = 0.0
    preemptible: bool = True
    preempts: bool = True
    user: str | None = None
    duration: Duration | None = None
    growth: Growth | None = None
    claims: tuple[str, ...] = ()
    charged_queue: str | None = None

    @property
    def grows(self) -> bool:
        """Whether it is a pod that extends an elastic gang."""
        return self.growth is not None

    @property
    def family(self) -> str:
        """The uid of the elastic gang that it extends, or its own."""
        return self.uid if self.growth is None else self.growth.base

    @property
    def evicts(self) -> bool:
        """Whether other gangs can be evicted for it."""
        return self.preempts and not self.grows

    @property
    def ref(self) -> str:
        """``namespace/name``, as printed."""
        return f"{self.namespace}/{self.name}"

    @property
    def requested(self) -> tuple[PodSet, ...]:
        """The podsets as the job requests them: without the sizes in GPUs that were found for them, and without the rules of a gang."""
        asked = tuple(replace(p, sized=None) if p.sized is not None else p for p in self.podsets)
        rules = self.growth.rules if self.growth is not None else None
        if rules is None:
            return asked
        return tuple(replace(p, shape=replace(p.shape, rules=rules)) for p in asked)

    @property
    def requests(self) -> Resources:
        return total(p.requests for p in self.podsets)

    @property
    def gpus(self) -> Fraction:
        """GPUs of the gang."""
        return gpus_of((podset, podset.count) for podset in self.podsets)

    @property
    def pods(self) -> int:
        """Its pods; podsets that stand for claims have none."""
        return sum(p.count for p in self.podsets if not stands_for_claims(p.name))


def gpus_of(podsets: Iterable[tuple[PodSet, int]]) -> Fraction:
    """GPUs of a gang with so many pods of each podset, up to ``MOST_GPUS``. Claims that pods share count once."""
    total = Fraction()
    claims: dict[str, Fraction] = {}
    for podset, pods in podsets:
        if pods:
            size = podset.gpus
            total += size.each * pods
            claims.update(size.claims)
    return min(sum(claims.values(), total), Fraction(MOST_GPUS))


def too_many_gpus(podsets: Sequence[PodSet], weights: GpuWeights) -> str | None:
    """The error of a gang that is larger than sizes can state; None if it is not."""
    if gpus_of((podset, podset.count) for podset in podsets) < MOST_GPUS:
        return None
    named = {name for one in podsets for name, _ in weights.by_resource(one.shape.requests)}
    what = ", ".join(sorted(named)) or "resource claims"
    return f"its pods ask for {MOST_GPUS:,} GPUs or more ({what})"


def fraction_of(podsets: Iterable[PodSet]) -> GpuFraction | None:
    """The first request for a fraction of a GPU."""
    return next((p.gpu_fraction for p in podsets if p.gpu_fraction is not None), None)


@dataclass(frozen=True, slots=True)
class DecidedRequest:
    """The request of a gang when its start was decided: it starts with that or not at all.

    Attributes:
        requests: of one pod, by podset.
        digest: of all fields of its object that the decision depends on.
        limit: seconds that it can run, over all attempts; None = no limit.
    """

    requests: Mapping[str, Resources]
    digest: str
    limit: float | None = None

    def larger(self, podset: str, requests: Resources) -> bool:
        """Whether a pod with these requests asks for more than was planned for its podset."""
        planned = self.requests.get(podset)
        return planned is not None and not requests.fits(planned)


@dataclass(frozen=True, slots=True)
class FlavorShare:
    """A number of pods of a podset, in rank order, that are charged to these flavors (resource to flavor)."""

    pods: int
    flavors: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PodSetPlacement:
    """Where a podset's pods go.

    ``nodes`` is ordered: rank 0 is on the first entry, and neighboring entries are neighbors in the topology. After a
    repair, where ranks keep their nodes, a node may stand there more than once.
    ``flavors`` names the ResourceFlavor charged for each resource the queue covers. ``pods`` is set for a podset that
    may start with fewer pods than it asks for: with how many it starts; None = with all. ``shares`` is set where the queue
    lets a podset use several flavors and it does: the first share's pods are the first ranks, and ``flavors`` is its.
    ``awaits_nodes``: its pods count against quota and are on no node, because their nodes do not exist yet.
    """

    podset: str
    nodes: tuple[tuple[str, int], ...]
    flavors: Mapping[str, str] = field(default_factory=dict)
    pods: int | None = None
    shares: tuple[FlavorShare, ...] = ()
    awaits_nodes: bool = False

    def charges(self, pods: int) -> Iterator[tuple[str, str, int]]:
        """(resource, flavor, pods charged to it) of a podset that ``pods`` are charged of."""
        for share in self.shares or (FlavorShare(pods, self.flavors),):
            for resource, flavor in share.flavors.items():
                yield resource, flavor, share.pods

    @property
    def charged(self) -> frozenset[str]:
        """Every flavor that some of its pods are charged to."""
        return frozenset(flavor for _, flavor, _ in self.charges(0))

    def by_share(self) -> tuple[PodSetPlacement, ...]:
        """Each share as a separate placement, with its pods, nodes and flavors; itself alone when it has none."""
        if not self.shares:
            return (self,)
        parts: list[PodSetPlacement] = []
        left = list(reversed(self.nodes))
        for share in self.shares:
            nodes: list[tuple[str, int]] = []
            missing = share.pods
            while missing > 0 and left:
                node, count = left.pop()
                taken = min(count, missing)
                nodes.append((node, taken))
                missing -= taken
                if count > taken:
                    left.append((node, count - taken))
            parts.append(PodSetPlacement(self.podset, tuple(nodes), share.flavors, share.pods))
        return tuple(parts)

    def left_on(self, held: Mapping[str, int]) -> PodSetPlacement:
        """The same placement once only so many pods are left on each node; what takes no nodes is left as it is."""
        if not self.shares or not self.nodes:
            return replace(self, nodes=tuple(held.items()))
        left = dict(held)
        shares = []
        for share in self.by_share():
            pods = 0
            for node, count in share.by_node.items():
                stays = min(count, left.get(node, 0))
                left[node] = left.get(node, 0) - stays
                pods += stays
            shares.append(FlavorShare(pods, share.flavors))
        return replace(self, nodes=tuple(held.items()), shares=tuple(shares))

    @property
    def count(self) -> int:
        return sum(count for _, count in self.nodes)

    @property
    def by_node(self) -> dict[str, int]:
        """Pods on each node."""
        pods: dict[str, int] = {}
        for node, count in self.nodes:
            pods[node] = pods.get(node, 0) + count
        return pods

    def pods_of(self, podset: PodSet) -> int:
        """Pods its podset starts with, on nodes or not."""
        return podset.count if self.pods is None else self.pods


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a whole gang goes: one entry per podset, in the podsets' order."""

    podsets: tuple[PodSetPlacement, ...]

    def of(self, podset: str) -> PodSetPlacement | None:
        return next((p for p in self.podsets if p.podset == podset), None)

    @property
    def on_nodes(self) -> bool:
        """Whether some of its pods are on nodes."""
        return any(podset.nodes for podset in self.podsets)

    @property
    def awaits_nodes(self) -> bool:
        """Whether nodes must be made before its pods can run."""
        return any(podset.awaits_nodes for podset in self.podsets)

    def use(self, workload: Workload) -> dict[str, Resources]:
        """Node name to what this placement uses there."""
        use: dict[str, Resources] = {}
        for podset in workload.podsets:
            placed = self.of(podset.name)
            for node, count in placed.nodes if placed else ():
                use[node] = use.get(node, NOTHING) + podset.shape.requests * count
        return use
