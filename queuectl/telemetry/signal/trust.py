"""Which scrape jobs of a Prometheus may say what GPUs do.

A tenant can export a series with any name and any labels, but not the ``job`` under which Prometheus scrapes it. Series of
other jobs are not read, so the pods they name are unknown, which is never idle. Nor are series of other clusters, whose pods
can have the same names, if labels distinguish them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from queuectl.domain.errors import BadInput
from queuectl.domain.words import comma_separated
from queuectl.telemetry.signal.names import HONORED, RENAMED, SLICE, UID, VENDORS

_NAME: Final = re.compile(r"[A-Za-z0-9_./:*-]+")
_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_NOT_A_START: Final = ("~", "=", '"', "'")  # another operator, or a value in quotes
_OF_A_GPU: Final = frozenset(
    label for names in VENDORS.values() for label in (*names.device, *names.parts)
)
_OF_A_POD: Final = frozenset(
    label
    for names in (HONORED, RENAMED, *(each.own_labels for each in VENDORS.values()))
    if names is not None
    for label in (names.namespace, names.pod)
)
QUERIED: Final = (
    _OF_A_GPU
    | _OF_A_POD
    | {UID, SLICE, "__name__", "job", "instance", "signal", "container", "Hostname"}
    | {"type", "hw_type", "error_type"}
)
"""The labels that queries match or group by themselves. One pod, GPU or node must not stand for all."""


@dataclass(frozen=True, slots=True)
class Trust:
    """The scrape jobs whose series count.

    Attributes:
        jobs: names of scrape jobs; ``*`` stands for any characters.
        namespaces: of the exporters' own pods, as Prometheus names them; empty = any.
        labels: further labels of the series of this cluster, with their values.
    """

    jobs: tuple[str, ...]
    namespaces: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()

    @property
    def selector(self) -> str:
        """Label matchers that hold for trusted series alone."""
        return ",".join((*(f"{label}=~{names}" for label, names in self._matched()), *self._same()))

    @property
    def negated(self) -> tuple[str, ...]:
        """Label matchers, one of which holds for each series of this cluster that is not trusted."""
        return tuple(
            ",".join((f"{label}!~{names}", *self._same())) for label, names in self._matched()
        )

    def __str__(self) -> str:
        """For people."""
        where = f" in namespace {' or '.join(self.namespaces)}" if self.namespaces else ""
        labels = ",".join(f"{label}={value}" for label, value in self.labels)
        return f"scrape jobs {', '.join(self.jobs)}{where}{labels and f' with {labels}'}"

    def _matched(self) -> list[tuple[str, str]]:
        by_label = (("job", self.jobs), ("namespace", self.namespaces))
        return [(label, _pattern(names)) for label, names in by_label if names]

    def _same(self) -> list[str]:
        """A matcher for each further label."""
        return [f"{label}={_quoted(value)}" for label, value in self.labels]


def names_of(text: str, setting: str) -> tuple[str, ...]:
    """The names in a list by commas.

    Raises:
        BadInput: one cannot be the name of a scrape job or namespace.
    """
    names = comma_separated(text)
    for name in names:
        if not _NAME.fullmatch(name):
            raise BadInput(f"{setting}: {name!r} is not a name; letters, digits and _ . / : - *")
    return names


def labels_of(text: str, setting: str) -> tuple[tuple[str, str], ...]:
    """The labels in a list by commas, each as ``label=value``.

    Raises:
        BadInput: one has no name or no value, is there twice, or is a label that queries match themselves.
    """
    labels: dict[str, str] = {}
    for pair in comma_separated(text):
        label, _, value = (part.strip() for part in pair.partition("="))
        if reason := _why_refused(label, value):
            raise BadInput(f"{setting}: {pair!r} {reason}")
        if label in labels:
            raise BadInput(f"{setting}: the label {label!r} is there twice")
        labels[label] = value
    return tuple(labels.items())


def _why_refused(label: str, text: str) -> str:
    """The reason why this label with this text does not select the series of a cluster; empty = it does."""
    if not _LABEL.fullmatch(label) or not text.isprintable():
        return "is not a label and its value, such as cluster=prod-1"
    if not text or text.startswith(_NOT_A_START):
        return "has no plain value: write label=value without quotes; only equality is supported"
    if label in QUERIED:
        return f"is not a label of a cluster: the queries set {label!r} themselves"
    return ""


def _quoted(text: str) -> str:
    """A PromQL string."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _pattern(names: Sequence[str]) -> str:
    """A PromQL string: a regular expression, which Prometheus anchors at both ends."""
    return '"' + "|".join(name.replace(".", "[.]").replace("*", ".*") for name in names) + '"'


JOBS: Final[Mapping[str, tuple[str, ...]]] = {
    "nvidia": ("nvidia-dcgm-exporter", "dcgm-exporter", "gpu-metrics"),
    "amd": ("default-metrics-exporter", "*-amdgpu-metrics-exporter"),
    "intel": ("intel-xpumanager",),
}
"""By vendor, the jobs that its installers make: the GPU operator, the exporter's own chart, the vendor's guide."""
NVIDIA_TRUST: Final = Trust(JOBS["nvidia"])
