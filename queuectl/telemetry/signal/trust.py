"""Which scrape jobs of a Prometheus may say what GPUs do.

A tenant can export a series with any name and any labels, but not the ``job`` under which Prometheus scrapes it. Series of
other jobs are not read, so the pods they name are unknown, which is never idle.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from queuectl.domain.errors import BadInput
from queuectl.domain.words import comma_separated

_NAME: Final = re.compile(r"[A-Za-z0-9_./:*-]+")


@dataclass(frozen=True, slots=True)
class Trust:
    """The scrape jobs whose series count.

    Attributes:
        jobs: names of scrape jobs; ``*`` stands for any characters.
        namespaces: of the exporters' own pods, as Prometheus names them; empty = any.
    """

    jobs: tuple[str, ...]
    namespaces: tuple[str, ...] = ()

    @property
    def selector(self) -> str:
        """Label matchers that hold for trusted series alone."""
        return ",".join(f"{label}=~{names}" for label, names in self._matched())

    @property
    def negated(self) -> tuple[str, ...]:
        """Label matchers, one of which holds for each series that is not trusted."""
        return tuple(f"{label}!~{names}" for label, names in self._matched())

    def __str__(self) -> str:
        """For people."""
        where = f" in namespace {' or '.join(self.namespaces)}" if self.namespaces else ""
        return f"scrape jobs {', '.join(self.jobs)}{where}"

    def _matched(self) -> list[tuple[str, str]]:
        by_label = (("job", self.jobs), ("namespace", self.namespaces))
        return [(label, _pattern(names)) for label, names in by_label if names]


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
