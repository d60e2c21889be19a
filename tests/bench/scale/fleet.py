"""The nodes and the quota of the benchmark: halls, blocks and racks, generations of GPUs, departments and teams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from queuectl.demo import scenario as m
from queuectl.demo.scenario import Document
from queuectl.domain.quantity import CPU, GPU
from queuectl.localcluster import NodeSpec
from queuectl.localcluster.nodes import BLOCK, PRODUCT, RACK
from queuectl.objects.configuration.config_kinds import API_VERSION
from tests.bench.scale.gangs import LOCAL_QUEUE, PRIORITIES

HALL: Final = "topology.queuectl.dev/hall"
LEVELS: Final = (HALL, BLOCK, RACK)
TOPOLOGY: Final = "halls"
GPUS_PER_NODE: Final = 8
HALLS: Final = 5
BLOCKS_PER_HALL: Final = 5
_BLOCKS: Final = HALLS * BLOCKS_PER_HALL
_RACK: Final = 16
_SMALL_RACK: Final = 4
_SMALL: Final = 400
"""Below so many nodes, a rack has four: each block then has a rack."""

DEPARTMENTS: Final = 5
TEAMS_PER_DEPARTMENT: Final = 8
ROOT: Final = "company"
OWNER_SHARE: Final = 0.125
"""The part of the newest generation of which the quota belongs to one team, the owner of the row about reclaim: 2,000 of 16,000 GPUs."""


@dataclass(frozen=True, slots=True)
class Generation:
    """A flavor: the nodes of whole halls with one product."""

    flavor: str
    product: str
    halls: tuple[int, ...]


GENERATIONS: Final = (
    Generation("a100", "NVIDIA-A100-SXM4-80GB", (0, 1)),
    Generation("h100", "NVIDIA-H100-80GB-HBM3", (2,)),
    Generation("h200", "NVIDIA-H200-141GB-HBM3e", (3,)),
    Generation("b200", "NVIDIA-B200-180GB-HBM3e", (4,)),
)
NEWEST: Final = GENERATIONS[-1]


def split(total: int, parts: int) -> list[int]:
    """A total in integer parts that differ by at most one, larger ones first."""
    least, more = divmod(total, parts)
    return [least + (number < more) for number in range(parts)]


@dataclass(frozen=True, slots=True)
class Fleet:
    """The nodes of one size, and their quota tree.

    A rack has 16 nodes (below 400 nodes: 4), and the racks are spread over 25 blocks, so 5,000 nodes are 4,992, and 2,500 are 2,496.

    Attributes:
        wanted_nodes: the size as asked for.
    """

    wanted_nodes: int

    def __post_init__(self) -> None:
        if self.racks < _BLOCKS:
            raise ValueError(
                f"a fleet needs at least {_BLOCKS * _SMALL_RACK} nodes, not {self.wanted_nodes}"
            )

    @property
    def hosts_per_rack(self) -> int:
        """Nodes of a rack."""
        return _RACK if self.wanted_nodes >= _SMALL else _SMALL_RACK

    @property
    def racks(self) -> int:
        """Racks of all blocks."""
        return round(self.wanted_nodes / self.hosts_per_rack)

    @property
    def nodes(self) -> int:
        """The number of nodes that there are."""
        return self.racks * self.hosts_per_rack

    @property
    def gpus(self) -> int:
        """The GPUs of all nodes."""
        return self.nodes * GPUS_PER_NODE

    def scaled(self, count: int, least: int = 1) -> int:
        """A count for 10,000 nodes, in proportion to these nodes."""
        return max(least, round(count * self.nodes / 10_000))

    # ---- Nodes

    def node_specs(self) -> list[NodeSpec]:
        """One for each block, hall by hall."""
        racks = split(self.racks, _BLOCKS)
        # Each hall has its part of the larger blocks.
        spread = [racks[block * HALLS + hall] for hall in range(HALLS) for block in range(5)]
        return [
            self._block(hall, block, spread[hall * BLOCKS_PER_HALL + block])
            for hall in range(HALLS)
            for block in range(BLOCKS_PER_HALL)
        ]

    def _block(self, hall: int, block: int, racks: int) -> NodeSpec:
        product = next(one.product for one in GENERATIONS if hall in one.halls)
        return NodeSpec(
            blocks=1,
            racks_per_block=racks,
            hosts_per_rack=self.hosts_per_rack,
            gpus=GPUS_PER_NODE,
            product=product,
            prefix=f"h{hall}-{block}-",
            labels=((HALL, f"h{hall}"),),
        )

    def capacity(self) -> dict[str, int]:
        """GPUs by flavor."""
        specs = self.node_specs()
        return {
            generation.flavor: sum(
                spec.count * spec.gpus for spec in specs if spec.product == generation.product
            )
            for generation in GENERATIONS
        }

    def blocks(self, generation: Generation) -> dict[str, int]:
        """The GPUs of each block of a generation, by the label of the block."""
        return {
            f"{spec.prefix}b0": spec.count * spec.gpus
            for spec in self.node_specs()
            if spec.product == generation.product
        }

    # ---- Quota

    def teams(self) -> list[str]:
        """Teams in the order of their departments. A team is a namespace and a ClusterQueue."""
        return [
            f"{department}-team-{number}"
            for department in departments()
            for number in range(TEAMS_PER_DEPARTMENT)
        ]

    @property
    def owner(self) -> str:
        """The team to which much quota of the newest generation belongs; the fill leaves it unused, so that others borrow it."""
        return self.teams()[-1]

    @property
    def owned(self) -> int:
        """The GPUs of the newest generation that belong to the owner."""
        return round(self.capacity()[NEWEST.flavor] * OWNER_SHARE / 8) * 8

    def quotas(self) -> dict[str, dict[str, int]]:
        """Nominal GPUs by team and flavor. Their sums are the capacity of the flavors."""
        teams = self.teams()
        quotas: dict[str, dict[str, int]] = {team: {} for team in teams}
        for flavor, capacity in self.capacity().items():
            if flavor == NEWEST.flavor:
                others = [team for team in teams if team != self.owner]
                shares = dict(zip(others, split(capacity - self.owned, len(others)), strict=True))
                shares[self.owner] = self.owned
            else:
                shares = dict(zip(teams, split(capacity, len(teams)), strict=True))
            for team, share in shares.items():
                quotas[team][flavor] = share
        return quotas

    def configuration(self) -> Iterator[Document]:
        """The documents of queuectl. Kueue's have the same fields."""
        yield m.topology(TOPOLOGY, *LEVELS)
        for generation in GENERATIONS:
            yield m.flavor(generation.flavor, topology=TOPOLOGY, **{PRODUCT: generation.product})
        for name, priority in PRIORITIES.items():
            yield m.priority_class(name, priority)
        yield _cohort(ROOT, None)
        for department in departments():
            yield _cohort(department, ROOT)
        for team, quotas in self.quotas().items():
            yield cluster_queue(team, department_of(team), quotas)
            yield m.local_queue(team, LOCAL_QUEUE, team)

    def namespaces(self) -> list[Document]:
        """One for each team."""
        return m.namespaces(self.teams())


def departments() -> list[str]:
    """The Cohorts below the root."""
    return [f"dept-{number}" for number in range(DEPARTMENTS)]


def department_of(team: str) -> str:
    """The Cohort of a team."""
    return team.rsplit("-team-", 1)[0]


def cluster_queue(team: str, cohort: str, quotas: Mapping[str, int]) -> Document:
    """The ClusterQueue of a team. CPU is covered, because pods request it, and does not limit."""
    document = m.cluster_queue(team, "", {}, within="LowerPriority")
    spec = document["spec"]
    spec["cohortName"] = cohort
    spec["preemption"]["reclaimWithinCohort"] = "Any"
    spec["resourceGroups"] = [
        {
            "coveredResources": [GPU, CPU],
            "flavors": [
                {
                    "name": flavor,
                    "resources": [
                        {"name": GPU, "nominalQuota": quota},
                        {"name": CPU, "nominalQuota": "1M"},
                    ],
                }
                for flavor, quota in quotas.items()
            ],
        }
    ]
    return document


def _cohort(name: str, parent: str | None) -> Document:
    return {
        "apiVersion": API_VERSION,
        "kind": "Cohort",
        "metadata": {"name": name},
        "spec": {"parentName": parent} if parent else {},
    }
