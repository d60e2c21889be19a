"""The table of the configuration kinds: their names in documents, in paths of REST, on the command line and as custom resources.

:mod:`queuectl.objects.configuration.queue_config` has their readers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

API_VERSION: Final = "queuectl.dev/v1"
KUEUE_VERSIONS: Final = ("kueue.x-k8s.io/v1beta2", "kueue.x-k8s.io/v1beta1")
KUEUE_SETTINGS_VERSIONS: Final = ("config.kueue.x-k8s.io/v1beta2", "config.kueue.x-k8s.io/v1beta1")
ONLY_NAME: Final = "default"
"""The name of the only Configuration. Kueue's file has none."""
PREFIX: Final = "/api/v1"
"""The start of the paths of REST."""


@dataclass(frozen=True, slots=True)
class ConfigKind:
    """One kind of configuration object.

    Attributes:
        kind: name of the kind.
        plural: REST resource name.
        namespaced: whether it has a namespace.
        aliases: other names on the command line.
        single: whether there is only one object, named :data:`ONLY_NAME`.
        kueue_versions: versions of Kueue's API from which it is read.
        short: short name of its custom resource, unlike those of Kueue's resources; empty = it has none.
        custom_plural: name of its custom resource, if it is not ``plural``.
    """

    kind: str
    plural: str
    namespaced: bool = False
    aliases: tuple[str, ...] = ()
    single: bool = False
    kueue_versions: tuple[str, ...] = KUEUE_VERSIONS
    short: str = ""
    custom_plural: str = ""

    @property
    def versions(self) -> tuple[str, ...]:
        """The values of ``apiVersion``."""
        return (API_VERSION, *self.kueue_versions)

    @property
    def singular(self) -> str:
        return self.kind.lower()

    @property
    def resource(self) -> str:
        """Name of its custom resource with the group, which kubectl accepts even if Kueue's resources exist."""
        return f"{self.custom_plural or self.plural}.{API_VERSION.partition('/')[0]}"

    def collection(self, namespace: str = "") -> str:
        """Path of the list; of all namespaces when ``namespace`` is empty."""
        scope = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return f"{PREFIX}{scope}/{self.plural}"

    def path(self, namespace: str, name: str) -> str:
        """Path of one object."""
        return f"{self.collection(namespace)}/{name}"


CONFIG_KINDS: Final = (
    ConfigKind("ClusterQueue", "clusterqueues", aliases=("cq",), short="qcq"),
    ConfigKind(
        "LocalQueue",
        "localqueues",
        namespaced=True,
        aliases=("lq", "queue", "queues"),
        short="qlq",
    ),
    ConfigKind("Cohort", "cohorts", short="qco"),
    ConfigKind(
        "ResourceFlavor", "resourceflavors", aliases=("rf", "flavor", "flavors"), short="qrf"
    ),
    ConfigKind("Topology", "topologies", short="qtp"),
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
        short="qwpc",
        custom_plural="workloadpriorityclasses",
    ),
    ConfigKind(
        "Configuration",
        "configurations",
        aliases=("config", "settings", "rules"),
        single=True,
        kueue_versions=KUEUE_SETTINGS_VERSIONS,
    ),
)

BY_KIND: Final = {kind.kind: kind for kind in CONFIG_KINDS}
CUSTOM_KINDS: Final = tuple(kind for kind in CONFIG_KINDS if kind.short)
"""The kinds that have a CustomResourceDefinition."""
