"""The jobs that Kueue manages, by the Configuration of its manager."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from queuectl.domain.queues import LabelSelector
from queuectl.objects.configuration.queue_config import named
from queuectl.objects.configuration.queues import read_selector
from queuectl.objects.configuration.settings_wire import ConfigurationDocument
from queuectl.objects.documents import Document
from queuectl.objects.keys import NAMESPACE_NAME

_DEFAULT_FRAMEWORK: Final = "batch/job"
_POD_FRAMEWORK: Final = "pod"
_SELECTOR: Final = "managedJobsNamespaceSelector"


@dataclass(frozen=True, slots=True)
class KueueScope:
    """Kueue (0.15 and newer) leaves every other job alone: it writes nothing of it, and removes no finalizer.

    Attributes:
        selector: of namespaces; None = all but those of the system.
        frameworks: the integrations that are enabled; None = all.
        own_namespace: of Kueue.
    """

    selector: LabelSelector | None = None
    frameworks: frozenset[str] | None = None
    own_namespace: str = "kueue-system"

    @classmethod
    def of(cls, configuration: Document, own_namespace: str) -> KueueScope:
        """The scope of a Configuration of ``config.kueue.x-k8s.io``. Raises DocumentError or RequestError."""
        decoded = named(configuration).convert(ConfigurationDocument)
        enabled = decoded.integrations.frameworks if decoded.integrations is not None else None
        return cls(
            read_selector(decoded.managed_jobs_namespace_selector, _SELECTOR),
            frozenset(enabled or [_DEFAULT_FRAMEWORK]),
            decoded.namespace or own_namespace,
        )

    def reason_outside(
        self, group: str, kind: str, namespace: str, labels: Mapping[str, str]
    ) -> str | None:
        """Why Kueue does not manage such a job of a namespace with these labels; None if it does. ``group``: "" = pods."""
        if not self._selects(namespace, labels):
            return f"{_SELECTOR} of Kueue does not select namespace {namespace}"
        framework = f"{group}/{kind.lower()}" if group else _POD_FRAMEWORK
        if self.frameworks is not None and framework not in self.frameworks:
            return f"integrations.frameworks of Kueue does not name {framework}"
        return None

    def _selects(self, namespace: str, labels: Mapping[str, str]) -> bool:
        if self.selector is None:
            return namespace not in ("kube-system", self.own_namespace)
        return self.selector.matches({NAMESPACE_NAME: namespace, **labels})
