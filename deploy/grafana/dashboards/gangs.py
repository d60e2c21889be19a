"""Gangs that start, fail to start, are evicted and preempted, and what that costs."""

from __future__ import annotations

from typing import Final

from deploy.grafana.dashboards.board import Board, Look, Panel, Query, Variable

ONE: Final = 'cluster_queue=~"$cluster_queue"'

GANGS: Final = Board(
    uid="queuectl-gangs",
    title="queuectl / Gangs and preemption",
    text="Starts, evictions with their reasons, preemption with its price, and leases.",
    variables=(Variable("cluster_queue", "ClusterQueue", "queuectl_cluster_queue_info"),),
    rows=(
        (
            "Preemption",
            (
                Panel("Preemptions", "Evictions in favour of another gang, in the last hour, by the rule that allowed them.",
                      [Query(f"sum by (reason) (increase(queuectl_preempted_workloads_total{{{ONE}}}[1h]))", "{{reason}}")],
                      look=Look.STACK, width=8),
                Panel("Lost to preemption", "GPU-hours of work since the last checkpoint that were thrown away, in the last hour.",
                      [Query(f"sum by (cluster_queue) (increase(queuectl_lost_gpu_seconds_total{{{ONE}}}[1h])) / 3600",
                             "{{cluster_queue}}")], width=8),
                Panel("Price of a preemption", "GPU-seconds lost for each gang evicted.",
                      [Query(f"sum(increase(queuectl_lost_gpu_seconds_total{{{ONE}}}[1h]))"
                             f" / sum(increase(queuectl_preempted_workloads_total{{{ONE}}}[1h]) > 0)", "GPU-seconds")], width=8),
                Panel("Leases", "Gangs whose place is kept while their victims leave.",
                      [Query(f'sum by (cluster_queue) (queuectl_workloads{{{ONE},status="Reserved"}})', "{{cluster_queue}}")],
                      look=Look.STACK),
                Panel("Leaving", "From the eviction until the last pod is gone: 95 % within.",
                      [Query(f"histogram_quantile(0.95, sum by (le) (rate(queuectl_workload_eviction_latency_seconds_bucket{{{ONE}}}[1h])))",
                             "95 % within")], "s"),
                Panel("Evicted for the first time", "Against all evictions: how many are hit again and again.",
                      [Query(f"sum(increase(queuectl_evicted_workloads_once_total{{{ONE}}}[1h]))", "first time"),
                       Query(f"sum(increase(queuectl_evicted_workloads_total{{{ONE}}}[1h]))", "all")]),
            ),
        ),
        (
            "Evictions and failures",
            (
                Panel("Evictions by reason", "In the last hour.",
                      [Query(f"sum by (reason) (increase(queuectl_evicted_workloads_total{{{ONE}}}[1h]))", "{{reason}}")],
                      look=Look.STACK),
                Panel("Queued again", "In the last hour, by why they had been evicted.",
                      [Query(f"sum by (reason) (increase(queuectl_requeued_workloads_total{{{ONE}}}[1h]))", "{{reason}}")],
                      look=Look.STACK),
                Panel("Given up", "Deactivated in the last day.",
                      [Query(f"sum by (reason) (increase(queuectl_deactivated_workloads_total{{{ONE}}}[1d]))", "{{reason}}")],
                      look=Look.STACK),
            ),
        ),
        (
            "Life of a gang",
            (
                Panel("Admission to ready", "How long starts take; the heat is the number of gangs.",
                      [Query(f"sum by (le) (increase(queuectl_admitted_until_ready_wait_time_seconds_bucket{{{ONE}}}[$__rate_interval]))", "{{le}}")],
                      "s", Look.HEAT, 12),
                Panel("Execution time", "How long finished gangs held their place, all attempts together.",
                      [Query(f"histogram_quantile(0.5, sum by (le, cluster_queue) (rate(queuectl_execution_time_seconds_bucket{{{ONE}}}[1h])))",
                             "{{cluster_queue}}")], "s", width=12),
                Panel("Finished", "By result, in the last hour.",
                      [Query(f"sum by (result) (increase(queuectl_finished_workloads_total{{{ONE}}}[1h]))", "{{result}}")],
                      look=Look.STACK, width=12),
                Panel("Ready to evicted", "How long evicted gangs had run whole: half of them less than this.",
                      [Query(f"histogram_quantile(0.5, sum by (le, reason) (rate(queuectl_pods_ready_to_evicted_time_seconds_bucket{{{ONE}}}[1h])))",
                             "{{reason}}")], "s", width=12),
            ),
        ),
    ),
)  # fmt: skip
