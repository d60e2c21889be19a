"""Findings on GPU technologies that need more than the installation of queuectl: changes of MIG, and NUMA nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from queuectl.cli.doctor.findings import Finding, Level
from queuectl.cli.reads import Document
from queuectl.domain.mig import MigMode
from queuectl.domain.words import counted, some

_ENABLE: Final = "enable the opt-in migReconfiguration, or set migReconfiguration: Plan: docs/how-to/reconfigure-mig.md"
_PUBLISH: Final = (
    "install an agent that publishes NodeResourceTopology objects: docs/how-to/numa.md"
)


def reconfigured(flavors: Sequence[Document] | None) -> list[str]:
    """The ResourceFlavors that let queuectl change MIG configurations."""
    return [
        flavor["metadata"]["name"]
        for flavor in flavors or ()
        if ((flavor.get("spec") or {}).get("policy") or {}).get("migReconfiguration")
        == MigMode.EXECUTE
    ]


def mig(flavors: Sequence[str], refused: Sequence[str], missing: Sequence[str]) -> list[Finding]:
    """Findings on changes of MIG configurations by queuectl.

    Args:
        flavors: that permit them; at least one.
        refused: rights of the opt-in that the ServiceAccount lacks.
        missing: objects of the opt-in that are not installed, as ``Kind name``.
    """
    message = f"{counted(len(flavors), 'ResourceFlavor')} with migReconfiguration: Execute ({some(flavors)})"
    lacks = []
    if refused:
        lacks.append(f"the ServiceAccount queuectl lacks rights: {some(refused)}")
    if missing:
        lacks.append(f"not installed: {some(missing)}")
    if not lacks:
        return [Finding("mig", Level.OK, f"{message}; the opt-in migReconfiguration is installed")]
    return [Finding("mig", Level.WARNING, f"{message}, but {' and '.join(lacks)}", _ENABLE)]


def numa(gangs: Sequence[str], *, served: bool) -> list[Finding]:
    """Findings on requests for one NUMA node.

    Args:
        gangs: that wait because no node can align their pods; at least one.
        served: whether the API server has the CustomResourceDefinition of NodeResourceTopology.
    """
    request = "requests" if len(gangs) == 1 else "request"
    message = f"{counted(len(gangs), 'gang')} ({some(gangs)}) {request} one NUMA node for each pod"
    if served:
        return [
            Finding(
                "numa",
                Level.WARNING,
                f"{message}, which no node can give",
                f"queuectl explain {gangs[0]}",
            )
        ]
    text = f"{message}, but the CustomResourceDefinition of NodeResourceTopology is not installed"
    return [Finding("numa", Level.WARNING, text, _PUBLISH)]
