"""``queuectl eff``: what one workload used of its GPUs, CPU and memory, as Slurm's ``seff``."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

from queuectl.cli.client import DEFAULT_SERVER, Namespace, Server, connect, workload_ref
from queuectl.cli.explain import ExplanationFormat, Kind, Workload, emit_explanation
from queuectl.cli.options import OUTPUT
from queuectl.domain.words import counted, gpu_count

if TYPE_CHECKING:
    from queuectl.client.types import JobEfficiencyJson

_GIB = 1 << 30


def eff_command(
    workload: Workload,
    namespace: Namespace = None,
    kind: Kind = None,
    output: Annotated[ExplanationFormat, OUTPUT] = ExplanationFormat.TEXT,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Show what a running or finished workload used: GPUs, CPU, memory, GPU-hours, cost and nodes."""
    with connect(server) as client:
        body = client.eff(workload_ref(workload, namespace), kind)
    emit_explanation(body, output, efficiency_lines)


def efficiency_lines(body: JobEfficiencyJson) -> list[str]:
    """The efficiency as text: a line for each figure that applies."""
    fields = {
        "Workload": f"{body['kind'].lower()}/{body['workload']}",
        "State": body["state"] + (f" at {body['finishedAt']}" if body["finishedAt"] else ""),
        "User": body["user"],
        "GPUs": _gpus(body),
        "Nodes": _nodes(body["nodes"]),
        "Elapsed": _elapsed(body),
        "GPU use": _gpu_use(body),
        "CPU use": _cpu_use(body),
        "Memory": _memory_use(body),
        "GPU-hours": _gpu_hours(body),
        "Cost": _cost(body),
    }
    return [f"{title + ':':<11}{value}" for title, value in fields.items() if value]


def _gpus(body: JobEfficiencyJson) -> str:
    flavors = f" of flavor {', '.join(body['flavors'])}" if body["flavors"] else ""
    return f"{gpu_count(body['gpus'])}{flavors} in {counted(body['pods'], 'pod')}"


def _nodes(nodes: list[str]) -> str:
    return f"{len(nodes)}: {', '.join(nodes)}" if nodes else ""


def _elapsed(body: JobEfficiencyJson) -> str:
    if not body["attempts"]:
        return "it has not started"
    text = str(timedelta(seconds=int(body["elapsedSeconds"])))
    if body["attempts"] > 1:
        text += f" in {body['attempts']} attempts; evicted {counted(body['evictions'], 'time')}"
    return text


def _share(efficiency: float | None, measured: float, unknown: str | None) -> str:
    """``84% (92% of the run measured)``, or why it is unknown."""
    if efficiency is None:
        return f"unknown: {unknown}"
    part = "all" if measured >= 0.995 else f"{measured:.0%}"
    return f"{efficiency:.0%} ({part} of the run measured)"


def _gpu_use(body: JobEfficiencyJson) -> str:
    if not body["gpus"]:
        return ""
    gpu = body["gpu"]
    return _share(gpu["efficiency"], gpu["measured"], gpu["unknown"])


def _cpu_use(body: JobEfficiencyJson) -> str:
    cpu = body["cpu"]
    text = _share(cpu["efficiency"], cpu["measured"], cpu["unknown"])
    used, requested = cpu["usedCoresPerPod"], cpu["requestedCoresPerPod"]
    if used is None or requested is None:
        return text
    return f"{text}; a pod used {used:.3g} of {requested:.3g} requested cores on average"


def _memory_use(body: JobEfficiencyJson) -> str:
    memory = body["memory"]
    text = _share(memory["efficiency"], memory["measured"], memory["unknown"])
    used, requested, peak = (
        memory["usedBytesPerPod"],
        memory["requestedBytesPerPod"],
        memory["peakBytes"],
    )
    if used is None or requested is None or peak is None:
        return text
    return (
        f"{text}; a pod used {_gib(used)} of {_gib(requested)} requested on average, "
        f"at most {_gib(peak)} in a sample"
    )


def _gib(size: float) -> str:
    return f"{size / _GIB:.3g} GiB"


def _gpu_hours(body: JobEfficiencyJson) -> str:
    hours = body["gpuHours"]
    if hours is None:
        return "none accounted for" if body["gpus"] and body["attempts"] else ""
    return f"{hours['allocated']:.1f}: {hours['productive']:.1f} productive, {hours['lost']:.1f} lost in evictions"


def _cost(body: JobEfficiencyJson) -> str:
    cost = body["cost"]
    if cost is None:
        return ""
    unpriced = cost["unpricedGpuHours"]
    more = f", without {unpriced:.1f} GPU-hours that have no price" if unpriced else ""
    return f"{cost['amount']:.2f} {cost['currency']}{more}"
