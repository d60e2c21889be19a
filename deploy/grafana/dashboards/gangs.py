"""Preemption and its cost, evictions, failures, and the duration of each phase of a gang."""

from __future__ import annotations

from typing import Final

from deploy.grafana.dashboards.board import Board, Look, Panel, Query, Unit, Variable

ONE: Final = 'cluster_queue=~"$cluster_queue"'

GANGS: Final = Board(
    uid="queuectl-gangs",
    title="queuectl / Gangs and preemption",
    text="The cost of preemption, evictions by reason, failures, and the time that gangs take to start, run and stop.",
    variables=(Variable("cluster_queue", "ClusterQueue", "queuectl_cluster_queue_info"),),
    rows=(
        (
            "Preemption",
            (
                Panel("Preempted gangs (last hour)", "Evictions in favor of another gang, by the rule that allowed them. The ClusterQueue is the preemptor's.",
                      [Query(f"sum by (reason) (increase(queuectl_preempted_workloads_total{{{ONE}}}[1h]))", "{{reason}}")],
                      Unit.GANGS, Look.STACK),
                Panel("GPU-hours lost to preemption (last hour)", "Work since the last checkpoint of preempted gangs.",
                      [Query(f"sum by (cluster_queue) (increase(queuectl_lost_gpu_seconds_total{{{ONE}}}[1h])) / 3600",
                             "{{cluster_queue}}")], Unit.GPU_HOURS),
                Panel("GPU-seconds lost per preemption", "Mean over the last hour.",
                      [Query(f"sum(increase(queuectl_lost_gpu_seconds_total{{{ONE}}}[1h]))"
                             f" / (sum(increase(queuectl_preempted_workloads_total{{{ONE}}}[1h])) > 0)", "mean")], Unit.GPU_SECONDS,
                      empty="No preemptions in the last hour."),
                Panel("Gangs with reserved capacity", "The gang starts when its victims have stopped. Until then a CapacityLease keeps the capacity.",
                      [Query(f'sum by (cluster_queue) (queuectl_workloads{{{ONE},status="Reserved"}})', "{{cluster_queue}}")],
                      Unit.GANGS, Look.STACK, empty="No gang has had reserved capacity since the controller took the lead."),
                Panel("Eviction duration (p95)", "Time from the eviction until the last pod has ended.",
                      [Query(f"histogram_quantile(0.95, sum by (le) (rate(queuectl_workload_eviction_latency_seconds_bucket{{{ONE}}}[1h])))",
                             "p95")], Unit.SECONDS, empty="No evictions in the last hour."),
                Panel("First evictions (last hour)", "A large difference between the lines means that the same gangs are evicted repeatedly.",
                      [Query(f"sum(increase(queuectl_evicted_workloads_once_total{{{ONE}}}[1h]))", "first eviction of a gang"),
                       Query(f"sum(increase(queuectl_evicted_workloads_total{{{ONE}}}[1h]))", "all evictions")], Unit.GANGS),
            ),
        ),
        (
            "Evictions and failures",
            (
                Panel("Evicted gangs by reason (last hour)", "All evictions, preemption included.",
                      [Query(f"sum by (reason) (increase(queuectl_evicted_workloads_total{{{ONE}}}[1h]))", "{{reason}}")],
                      Unit.GANGS, Look.STACK),
                Panel("Requeued gangs by reason (last hour)", "The reason is that of the eviction.",
                      [Query(f"sum by (reason) (increase(queuectl_requeued_workloads_total{{{ONE}}}[1h]))", "{{reason}}")],
                      Unit.GANGS, Look.STACK),
                Panel("Deactivated gangs by reason (last day)", "A deactivated gang stays out of its queue until a person activates it.",
                      [Query(f"sum by (reason) (increase(queuectl_deactivated_workloads_total{{{ONE}}}[1d]))", "{{reason}}")],
                      Unit.GANGS, Look.STACK),
            ),
        ),
        (
            "Duration of each phase",
            (
                Panel("Admission until ready (p50, p95)", "Image pulls, volumes and container starts, each attempt. Over 30 minutes.",
                      [Query(f"histogram_quantile(0.5, sum by (le) (rate(queuectl_admitted_until_ready_wait_time_seconds_bucket{{{ONE}}}[30m])))", "p50"),
                       Query(f"histogram_quantile(0.95, sum by (le) (rate(queuectl_admitted_until_ready_wait_time_seconds_bucket{{{ONE}}}[30m])))", "p95")],
                      Unit.SECONDS, width=12, empty="No starts in the last 30 minutes."),
                Panel("Run time of finished gangs (p50)", "Time from admission to the end, summed over all attempts. Over one hour.",
                      [Query(f"histogram_quantile(0.5, sum by (le, cluster_queue) (rate(queuectl_execution_time_seconds_bucket{{{ONE}}}[1h])))",
                             "{{cluster_queue}}")], Unit.SECONDS, width=12, empty="No gang has finished in the last hour."),
                Panel("Finished gangs by result (last hour)", "Succeeded, Failed, or Deleted while unfinished.",
                      [Query(f"sum by (result) (increase(queuectl_finished_workloads_total{{{ONE}}}[1h]))", "{{result}}")],
                      Unit.GANGS, Look.STACK, width=12, empty="No gang has finished since the controller took the lead."),
                Panel("Run time before eviction (p50)", "Time from ready to the eviction, by reason. Over one hour.",
                      [Query(f"histogram_quantile(0.5, sum by (le, reason) (rate(queuectl_pods_ready_to_evicted_time_seconds_bucket{{{ONE}}}[1h])))",
                             "{{reason}}")], Unit.SECONDS, width=12, empty="No evictions of ready gangs in the last hour."),
            ),
        ),
    ),
)  # fmt: skip
