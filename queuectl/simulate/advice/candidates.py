"""The changes that are worth a simulation for a configuration and its jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from queuectl.domain.fleet import HOSTNAME
from queuectl.domain.queues import QueueingStrategy
from queuectl.objects.configuration.queue_config import API_VERSION
from queuectl.objects.documents import Document
from queuectl.objects.keys import PREFIX, REQUIRED_TOPOLOGY
from queuectl.simulate.advice.changes import Change, Jobs, Kind, only_if, set_field
from queuectl.simulate.advice.quota_split import quota_splits
from queuectl.simulate.setting import Setting

_ANNOTATION: Final = f"{PREFIX}{REQUIRED_TOPOLOGY}"


def candidates(given: Sequence[Document], setting: Setting) -> list[Change]:
    """All changes that differ from the input, in a fixed order."""
    every = [
        *quota_splits(given, setting),
        *_strategies(),
        *_preemption(setting),
        *_topology(setting),
        *_idle_reclaim(setting),
    ]
    return [change for change in every if change.differs(given, setting.jobs)]


def _strategies() -> Iterator[Change]:
    for strategy in QueueingStrategy:
        yield Change(
            (Kind.STRATEGY,),
            f"queueingStrategy {strategy}",
            set_field("queueingStrategy", value=strategy.value),
        )


def _preemption(setting: Setting) -> Iterator[Change]:
    def one(field: str, value: str) -> Change:
        name = f"preemption.{field} {value}"
        return Change((Kind.PREEMPTION,), name, set_field("preemption", field, value=value))

    priorities_differ = len(set(setting.priorities.values())) > 1
    if any(queue.cohort for queue in setting.config.cluster_queues.values()):
        for value in ("Never", "LowerPriority", "Any") if priorities_differ else ("Never", "Any"):
            yield one("reclaimWithinCohort", value)
    if priorities_differ:
        for value in ("Never", "LowerPriority"):
            yield one("withinClusterQueue", value)


def _topology(setting: Setting) -> Iterator[Change]:
    """Gangs of several pods in one domain of a level, or without one."""
    levels = {level for topology in setting.config.topologies.values() for level in topology.levels}
    used = {job.topology_level for job in setting.jobs if job.topology_level}
    if used:
        yield Change(
            (Kind.TOPOLOGY,),
            "no required topology level",
            jobs=_at_level(""),
            instruction=f"Users remove the annotation {_ANNOTATION} from their jobs.",
        )
    for level in sorted(levels - {HOSTNAME}):
        yield Change(
            (Kind.TOPOLOGY,),
            f"required topology level {level}",
            jobs=_at_level(level),
            instruction=f"Users set the annotation {_ANNOTATION}: {level} on jobs of several pods.",
        )


def _at_level(level: str) -> Any:
    def change(jobs: Jobs) -> Jobs:
        return tuple(replace(j, topology_level=level) if j.pods > 1 else j for j in jobs)

    return change


def _idle_reclaim(setting: Setting) -> Iterator[Change]:
    if all(job.utilization is None for job in setting.jobs):
        return
    policies: dict[str, dict[str, object]] = {
        "Off": {},
        "OnDemand": {},
        "OnDemand, to equal priority": {"yieldsToEqualPriority": True},
        "Always": {},
    }
    for name, more in policies.items():
        mode = {"mode": name.partition(",")[0], **more}

        def edit(body: dict[str, Any], mode: dict[str, object] = mode) -> None:
            policy = (body.get("spec") or {}).get("policy") or {}
            known = policy.get("idleReclaim") or {}
            set_field("policy", "idleReclaim", value={**known, **mode})(body)

        yield Change((Kind.IDLE_RECLAIM,), f"idleReclaim {name}", only_if(_native, edit))


def _native(body: dict[str, Any]) -> bool:
    """Whether it can have fields of queuectl."""
    return body.get("apiVersion") == API_VERSION
