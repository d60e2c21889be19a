"""The configuration kinds, with their names in paths, on the command line and in documents.

This module imports no web framework, because the command line uses it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

API_VERSION: Final = "queuectl.dev/v1"
KUEUE_VERSIONS: Final = ("kueue.x-k8s.io/v1beta2", "kueue.x-k8s.io/v1beta1")
ONLY_NAME: Final = "default"  # of a kind of which there is one object
PREFIX: Final = "/api/v1"


@dataclass(frozen=True, slots=True)
class ConfigKind:
    """``plural`` is the REST resource; ``aliases`` are other names on the command line; ``single``: there is one object of it."""

    kind: str
    plural: str
    namespaced: bool = False
    aliases: tuple[str, ...] = ()
    single: bool = False
    kueue_versions: tuple[str, ...] = KUEUE_VERSIONS

    @property
    def versions(self) -> tuple[str, ...]:
        """The values of ``apiVersion``."""
        return (API_VERSION, *self.kueue_versions)

    @property
    def singular(self) -> str:
        return self.kind.lower()

    def collection(self, namespace: str = "") -> str:
        """Path of the list; of all namespaces when ``namespace`` is empty."""
        scope = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return f"{PREFIX}{scope}/{self.plural}"

    def path(self, namespace: str, name: str) -> str:
        """Path of one object."""
        return f"{self.collection(namespace)}/{name}"


CONFIG_KINDS: Final = (
    ConfigKind("ClusterQueue", "clusterqueues", aliases=("cq",)),
    ConfigKind("LocalQueue", "localqueues", namespaced=True, aliases=("lq", "queue", "queues")),
    ConfigKind("Cohort", "cohorts"),
    ConfigKind("ResourceFlavor", "resourceflavors", aliases=("rf", "flavor", "flavors")),
    ConfigKind("Topology", "topologies"),
    ConfigKind("AdmissionCheck", "admissionchecks", aliases=("ac",)),
    ConfigKind("ProvisioningRequestConfig", "provisioningrequestconfigs", aliases=("prc",)),
    ConfigKind("QuotaOverride", "quotaoverrides", aliases=("qo",), kueue_versions=()),
    ConfigKind("Budget", "budgets", kueue_versions=()),
    ConfigKind("BudgetTopUp", "budgettopups", aliases=("topup", "topups"), kueue_versions=()),
    ConfigKind("Reservation", "reservations", aliases=("resv",), kueue_versions=()),
    ConfigKind(
        "WorkloadPriorityClass",
        "priorityclasses",
        aliases=("wpc", "priorityclass", "workloadpriorityclasses"),
    ),
    ConfigKind(
        "Configuration",
        "configurations",
        aliases=("config", "settings", "rules"),
        single=True,
        kueue_versions=("config.kueue.x-k8s.io/v1beta2", "config.kueue.x-k8s.io/v1beta1"),
    ),
)

BY_KIND: Final = {kind.kind: kind for kind in CONFIG_KINDS}
