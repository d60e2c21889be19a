"""Efficiency of all GPUs, and use of the GPUs that gangs hold: idle, stuck and unknown GPUs, reclaim, and the measurements."""

from __future__ import annotations

from typing import Final

from deploy.grafana.dashboards.board import Board, Look, Panel, Query, Unit, Variable

ONE: Final = 'cluster_queue=~"$cluster_queue"'
TOTAL: Final = "sum(queuectl_cluster_gpus)"
WASTED: Final = 'sum(queuectl_cluster_gpus{part!~"effective|unknown"})'
EFFICIENCY: Final = f'sum(queuectl_cluster_gpus{{part="effective"}}) / ({TOTAL} > 0)'
HIGHEST: Final = f'sum(queuectl_cluster_gpus{{part=~"effective|unknown"}}) / ({TOTAL} > 0)'
KNOWN: Final = f'queuectl_utilization_gpus{{{ONE},status!~"Unknown|Warmup"}}'
NO_SOURCE: Final = (
    "No gang holds GPUs, or no source of GPU metrics is configured (docs/how-to/utilization.md)."
)

UTILIZATION: Final = Board(
    uid="queuectl-utilization",
    title="queuectl / Utilization and waste",
    text="Efficiency of the cluster, GPUs that gangs hold and do not use, stuck gangs, and gaps of the measurements."
    " Unknown utilization never counts as idle.",
    variables=(Variable("cluster_queue", "ClusterQueue", "queuectl_cluster_queue_info"),),
    rows=(
        (
            "Efficiency of the cluster, all ClusterQueues",
            (
                Panel("Efficiency (%)", "Effective GPUs / all GPUs, as in `queuectl report efficiency`.",
                      [Query(EFFICIENCY, "efficiency")], Unit.SHARE, Look.NUMBER, 4, 4),
                Panel("Highest efficiency (%)", "The efficiency if all unknown GPUs were effective.",
                      [Query(HIGHEST, "highest")], Unit.SHARE, Look.NUMBER, 4, 4),
                Panel("Total GPUs", "The capacity of all nodes. Failed GPUs, and nodes that are cordoned or not ready, count.",
                      [Query(TOTAL, "total")], Unit.GPUS, Look.NUMBER, 4, 4),
                Panel("Effective GPUs", "GPUs that measured gangs hold × their measured utilization.",
                      [Query('sum(queuectl_cluster_gpus{part="effective"})', "effective")], Unit.GPUS, Look.NUMBER, 4, 4),
                Panel("Wasted GPUs", "idle + fragmented + unhealthy + unallocated.", [Query(WASTED, "wasted")], Unit.GPUS, Look.NUMBER, 4, 4),
                Panel("Unknown GPUs", "Held by gangs without a measurement, or by pods that belong to no gang. They are not wasted.",
                      [Query('sum(queuectl_cluster_gpus{part="unknown"})', "unknown")], Unit.GPUS, Look.NUMBER, 4, 4),
                Panel("All GPUs by part", "Each GPU is in one part. idle: held by measured gangs, not used. fragmented: free, but the next pod is expected to be"
                      " unable to use it. unhealthy: failed, or free on a node that takes no pods. unallocated: the other free GPUs.",
                      [Query("sum by (part) (queuectl_cluster_gpus)", "{{part}}")], Unit.GPUS, Look.STACK, 12),
                Panel("Efficiency over time (%)", "The efficiency is between the lines: the utilization of unknown GPUs is not measured.",
                      [Query(EFFICIENCY, "efficiency"), Query(HIGHEST, "highest")], Unit.SHARE, width=12),
            ),
        ),
        (
            "Now",
            (
                Panel("Utilization (%)", "Mean over the allocated GPUs whose utilization is known. That of gangs that warm up is not.",
                      [Query(f"sum(queuectl_utilization_busy_gpus{{{ONE}}}) / (sum({KNOWN}) > 0)", "utilization")], Unit.SHARE, Look.NUMBER, 6, 4,
                      empty="unknown"),
                Panel("Idle GPUs", "Held by gangs that were idle for the whole window of their ClusterQueue.",
                      [Query(f'sum(queuectl_utilization_gpus{{{ONE},status="Idle"}}) or vector(0)', "idle")], Unit.GPUS, Look.NUMBER, 6, 4),
                Panel("Stuck GPUs", "Busy without computing, for example in a collective operation that hangs. Stuck gangs are reported, not evicted.",
                      [Query(f'sum(queuectl_utilization_gpus{{{ONE},status="Stuck"}}) or vector(0)', "stuck")], Unit.GPUS, Look.NUMBER, 6, 4),
                Panel("Unknown GPUs of gangs", "Not measured, or with gaps. The panel Pods without a full measurement shows the reason.",
                      [Query(f'sum(queuectl_utilization_gpus{{{ONE},status="Unknown"}}) or vector(0)', "unknown")], Unit.GPUS, Look.NUMBER, 6, 4),
            ),
        ),
        (
            "Over time",
            (
                Panel("GPUs by utilization state", "Warmup: the first minutes after the start, with image pulls, data loading and compilation.",
                      [Query(f"sum by (status) (queuectl_utilization_gpus{{{ONE}}})", "{{status}}")], Unit.GPUS, Look.STACK, 12, empty=NO_SOURCE),
                Panel("Idle GPUs by ClusterQueue", "GPUs that idle gangs hold.",
                      [Query(f'sum by (cluster_queue) (queuectl_utilization_gpus{{{ONE},status="Idle"}})', "{{cluster_queue}}")],
                      Unit.GPUS, Look.STACK, 12, empty="No idle gang since the controller took the lead."),
                Panel("Utilization by ClusterQueue (%)", "Mean over the allocated GPUs whose utilization is known. That of gangs that warm up is not.",
                      [Query(f"sum by (cluster_queue) (queuectl_utilization_busy_gpus{{{ONE}}})"
                             f" / (sum by (cluster_queue) ({KNOWN}) > 0)",
                             "{{cluster_queue}}")], Unit.SHARE, width=12, empty=NO_SOURCE),
                Panel("Gangs by utilization state", "Gangs that hold GPUs.",
                      [Query(f"sum by (status) (queuectl_utilization_gangs{{{ONE}}})", "{{status}}")], Unit.GANGS, Look.STACK, 12, empty=NO_SOURCE),
            ),
        ),
        (
            "Reclaim of idle GPUs",
            (
                Panel("Idle gangs by result (last hour)", "warned: up to twice for each gang. would_reclaim: a dry run. on_demand: evicted for a pending gang."
                      " always: evicted without one.",
                      [Query(f"sum by (result) (increase(queuectl_idle_reclaim_total{{{ONE}}}[1h]))", "{{result}}")], Unit.GANGS, width=12),
                Panel("Reclaimed gangs by ClusterQueue (last hour)", "Idle gangs that were evicted.",
                      [Query(f'sum by (cluster_queue) (increase(queuectl_idle_reclaim_total{{{ONE},result=~"on_demand|always"}}[1h]))',
                             "{{cluster_queue}}")], Unit.GANGS, width=12),
            ),
        ),
        (
            "Quality of the measurements",
            (
                Panel("Pods without a full measurement", "By reason. See the alert QueuectlUtilizationUnknown.",
                      [Query("queuectl_utilization_alarms", "{{reason}}")], Unit.PODS, Look.STACK, 12, empty=NO_SOURCE),
                Panel("Query duration (p95)", "Duration of one query for all gangs. Planning does not wait for it.",
                      [Query("histogram_quantile(0.95, sum by (le) (rate(queuectl_utilization_look_duration_seconds_bucket[30m])))",
                             "p95")], Unit.SECONDS, width=12, empty=NO_SOURCE),
            ),
        ),
    ),
)  # fmt: skip
