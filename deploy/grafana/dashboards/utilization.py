"""What gangs do with the GPUs they hold, and what of it is wasted or unknown."""

from __future__ import annotations

from typing import Final

from deploy.grafana.dashboards.board import Board, Look, Panel, Query, Variable

ONE: Final = 'cluster_queue=~"$cluster_queue"'
KNOWN: Final = f'sum(queuectl_utilization_gpus{{{ONE},status!="Unknown"}})'

UTILIZATION: Final = Board(
    uid="queuectl-utilization",
    title="queuectl / Utilization and waste",
    text="GPUs that are held and not used, stuck, or not measured. What is unknown is never counted as idle.",
    variables=(Variable("cluster_queue", "ClusterQueue", "queuectl_cluster_queue_info"),),
    rows=(
        (
            "Now",
            (
                Panel("Utilization", "Of GPUs whose use is known, by time and GPU.",
                      [Query(f"sum(queuectl_utilization_busy_gpus{{{ONE}}}) / ({KNOWN} > 0)")], "percentunit", Look.NUMBER, 6, 4),
                Panel("Idle GPUs", "Held by gangs that have done nothing for their queue's whole window.",
                      [Query(f'sum(queuectl_utilization_gpus{{{ONE},status="Idle"}}) or vector(0)')], "short", Look.NUMBER, 6, 4),
                Panel("Stuck GPUs", "Busy and computing nothing: a hung collective. Reported, never evicted for it.",
                      [Query(f'sum(queuectl_utilization_gpus{{{ONE},status="Stuck"}}) or vector(0)')], "short", Look.NUMBER, 6, 4),
                Panel("Unknown GPUs", "Not measured, or not well enough. The alarms below say why.",
                      [Query(f'sum(queuectl_utilization_gpus{{{ONE},status="Unknown"}}) or vector(0)')], "short", Look.NUMBER, 6, 4),
            ),
        ),
        (
            "Over time",
            (
                Panel("GPUs by what their gangs do", "Warmup: images, data and compilation.",
                      [Query(f"sum by (status) (queuectl_utilization_gpus{{{ONE}}})", "{{status}}")], look=Look.STACK, width=12),
                Panel("Idle by ClusterQueue", "Held by idle gangs.",
                      [Query(f'sum by (cluster_queue) (queuectl_utilization_gpus{{{ONE},status="Idle"}})', "{{cluster_queue}}")],
                      look=Look.STACK, width=12),
                Panel("Utilization by ClusterQueue", "Of GPUs whose use is known.",
                      [Query(f"sum by (cluster_queue) (queuectl_utilization_busy_gpus{{{ONE}}})"
                             f' / (sum by (cluster_queue) (queuectl_utilization_gpus{{{ONE},status!="Unknown"}}) > 0)',
                             "{{cluster_queue}}")], "percentunit", width=12),
                Panel("Gangs", "By what they do with their GPUs.",
                      [Query(f"sum by (status) (queuectl_utilization_gangs{{{ONE}}})", "{{status}}")], look=Look.STACK, width=12),
            ),
        ),
        (
            "What came of it",
            (
                Panel("Idle gangs", "Warned (twice each), taken for a gang that waited, or always; would_reclaim is a dry run's. In the last hour.",
                      [Query(f"sum by (result) (increase(queuectl_idle_reclaim_total{{{ONE}}}[1h]))", "{{result}}")], width=12),
                Panel("Taken, by ClusterQueue", "Idle gangs that went, on demand or always, in the last hour.",
                      [Query(f'sum by (cluster_queue) (increase(queuectl_idle_reclaim_total{{{ONE},result=~"on_demand|always"}}[1h]))',
                             "{{cluster_queue}}")], width=12),
            ),
        ),
        (
            "The signal itself",
            (
                Panel("Alarms", "Pods whose use is not, or not well, known because the set-up is wrong.",
                      [Query("queuectl_utilization_alarms", "{{reason}}")], look=Look.STACK, width=12),
                Panel("Time of a look", "At all gangs; 95 % within. Planning never waits for it.",
                      [Query("histogram_quantile(0.95, sum by (le) (rate(queuectl_utilization_look_duration_seconds_bucket[30m])))",
                             "95 % within")], "s", width=12),
            ),
        ),
    ),
)  # fmt: skip
