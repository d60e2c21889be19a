"""The owner of the configuration: the database, or objects of the cluster that the leader follows.

An owner is a table of kinds. Everything that follows objects reads this table, so another API group is another row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final
from urllib.parse import quote

from queuectl.domain.queries import DocumentKey
from queuectl.objects.configuration.config_kinds import BY_KIND, ConfigKind


class Owner(StrEnum):
    """The values of ``QUEUECTL_CONFIGURATION_OWNER``.

    ``database``: REST, CLI and dashboard write. ``kueue``: objects of ``kueue.x-k8s.io``. ``kubernetes``: objects of ``queuectl.dev``.
    """

    DATABASE = "database"
    KUEUE = "kueue"
    KUBERNETES = "kubernetes"


@dataclass(frozen=True, slots=True)
class FollowedKind:
    """A kind of configuration whose objects are in the cluster.

    Attributes:
        kind: of configuration.
        group: its API group.
        plural: its resource in that group.
        versions: versions of the group that this release reads.
    """

    kind: ConfigKind
    group: str
    plural: str
    versions: tuple[str, ...]

    @property
    def definition(self) -> str:
        """The name of its CustomResourceDefinition."""
        return f"{self.plural}.{self.group}"

    def path(self, version: str) -> str:
        """The path of the collection of all namespaces."""
        return f"/apis/{self.group}/{version}/{self.plural}"

    def object_path(self, version: str, key: DocumentKey) -> str:
        """The path of one object."""
        scope = f"namespaces/{quote(key.namespace, safe='')}/" if key.namespace else ""
        name = quote(key.name, safe="")
        return f"/apis/{self.group}/{version}/{scope}{self.plural}/{name}"

    def kubectl(self, verb: str, key: DocumentKey) -> str:
        """A command of kubectl on one object: ``edit`` or ``delete``."""
        scope = f" -n {key.namespace}" if key.namespace else ""
        return f"kubectl {verb} {self.kind.singular}.{self.group} {key.name}{scope}"


def _kinds(
    group: str, versions: tuple[str, ...], plurals: Mapping[str, str]
) -> tuple[FollowedKind, ...]:
    return tuple(
        FollowedKind(BY_KIND[kind], group, plural, versions) for kind, plural in plurals.items()
    )


GROUP: Final = "queuectl.dev"
"""The API group of queuectl's own objects."""
_BOTH: Final = {
    "ResourceFlavor": "resourceflavors",
    "Topology": "topologies",
    "Cohort": "cohorts",
    "ClusterQueue": "clusterqueues",
    "LocalQueue": "localqueues",
    "WorkloadPriorityClass": "workloadpriorityclasses",
}
_CHECKS: Final = {
    "AdmissionCheck": "admissionchecks",
    "ProvisioningRequestConfig": "provisioningrequestconfigs",
}

FOLLOWED: Final[Mapping[Owner, tuple[FollowedKind, ...]]] = MappingProxyType(
    {
        Owner.DATABASE: (),
        Owner.KUEUE: _kinds("kueue.x-k8s.io", ("v1beta2", "v1beta1"), _BOTH | _CHECKS),
        Owner.KUBERNETES: _kinds(GROUP, ("v1",), _BOTH),
    }
)
"""The kinds of which objects of the cluster are the configuration. All others stay in the database."""

KUEUE_STATUSES: Final = ("ClusterQueue", "LocalQueue", "Cohort", "AdmissionCheck")
"""The kinds of Kueue of which queuectl writes the status while no Kueue runs."""


def followed_kind(owner: Owner, kind: str) -> FollowedKind | None:
    """The entry of a kind; None if the database owns it."""
    return next((one for one in FOLLOWED[owner] if one.kind.kind == kind), None)
