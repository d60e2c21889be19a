"""The cluster at a glance: how much is given away, how long people wait, and whether anything is wrong."""

from __future__ import annotations

from typing import Final

from deploy.grafana.dashboards.board import Board, Look, Panel, Query, Variable

GPU: Final = 'resource="$resource"'
USED: Final = f"sum(queuectl_cluster_queue_resource_usage{{{GPU}}})"
OFFERED: Final = f"sum(queuectl_nodes_allocatable{{{GPU}}})"

OVERVIEW: Final = Board(
    uid="queuectl-overview",
    title="queuectl / Cluster overview",
    text="How much of the cluster is given away and used, who waits, and for how long.",
    variables=(Variable("resource", "Resource", "queuectl_nodes_allocatable", one="nvidia.com/gpu"),),
    rows=(
        (
            "Now",
            (
                Panel("Allocated", "Of what usable nodes have, the part that gangs hold.",
                      [Query(f"{USED} / {OFFERED}")], "percentunit", Look.NUMBER, 4, 4),
                Panel("Free", "What usable nodes have and no gang holds.", [Query(f"{OFFERED} - {USED}")],
                      "short", Look.NUMBER, 4, 4),
                Panel("Asked for", "What gangs that queue ask for, all together.",
                      [Query(f"sum(queuectl_cluster_queue_resource_pending{{{GPU}}})")], "short", Look.NUMBER, 4, 4),
                Panel("Running gangs", "Starting or running.", [Query("sum(queuectl_admitted_active_workloads)")],
                      "short", Look.NUMBER, 4, 4),
                Panel("Waiting gangs", "Everything that is not started: in line, refused, held, in back-off.",
                      [Query("sum(queuectl_pending_workloads)")], "short", Look.NUMBER, 4, 4),
                Panel("Leaders", "Exactly 1, or nobody (or everybody) decides.", [Query("sum(queuectl_leader)")],
                      "short", Look.NUMBER, 4, 4),
            ),
        ),
        (
            "Allocation",
            (
                Panel("Held, kept, free", "Kept: what leases hold for gangs whose victims still leave.",
                      [Query(USED, "held"),
                       Query(f"sum(queuectl_cluster_queue_resource_reservation{{{GPU}}}) - {USED}", "kept by leases"),
                       Query(f"{OFFERED} - sum(queuectl_cluster_queue_resource_reservation{{{GPU}}})", "free")],
                      look=Look.STACK, width=12),
                Panel("By ClusterQueue", "What the gangs of each hold.",
                      [Query(f"sum by (cluster_queue) (queuectl_cluster_queue_resource_usage{{{GPU}}})", "{{cluster_queue}}")],
                      look=Look.STACK, width=12),
                Panel("Nodes", "Nodes that take pods, and those that do not.",
                      [Query("queuectl_nodes", "{{status}}")], look=Look.STACK, width=8),
                Panel("Free against asked for", "Much of both at once: quota, shape or topology keep them apart; look at the reasons.",
                      [Query(f"{OFFERED} - {USED}", "free"),
                       Query(f"sum(queuectl_cluster_queue_resource_pending{{{GPU}}})", "asked for")], width=8),
                Panel("Why gangs wait", "Waiting gangs by the reason they were last told.",
                      [Query("sum by (reason) (queuectl_pending_workloads)", "{{reason}}")], look=Look.STACK, width=8),
                Panel("Fragmentation", "Free GPUs, those of them that the next pod is expected not to be able to use, and those that no pod fits.",
                      [Query("sum(queuectl_fleet_free_gpus)", "free"),
                       Query("sum(queuectl_fleet_fragmented_gpus)", "fragmented"),
                       Query("sum(queuectl_fleet_stranded_gpus)", "stranded")], width=12),
                Panel("Spread", "Domains that gangs were started in, over the fewest that could hold them on empty nodes. 1 is best.",
                      [Query("sum by (level) (increase(queuectl_admitted_domains_total[1h]))"
                             " / (sum by (level) (increase(queuectl_admitted_domains_least_total[1h])) > 0)", "{{level}}")], width=12),
            ),
        ),
        (
            "Waits and flow",
            (
                Panel("Wait for admission", "Submission to first admission, of gangs admitted lately.",
                      [Query("histogram_quantile(0.5, sum by (le) (rate(queuectl_admission_wait_time_seconds_bucket[30m])))", "half within"),
                       Query("histogram_quantile(0.95, sum by (le) (rate(queuectl_admission_wait_time_seconds_bucket[30m])))", "95 % within")],
                      "s"),
                Panel("Admission to ready", "Images, volumes and start-up: not queueing.",
                      [Query("histogram_quantile(0.5, sum by (le) (rate(queuectl_admitted_until_ready_wait_time_seconds_bucket[30m])))", "half within"),
                       Query("histogram_quantile(0.95, sum by (le) (rate(queuectl_admitted_until_ready_wait_time_seconds_bucket[30m])))", "95 % within")],
                      "s"),
                Panel("Flow", "Gangs a minute.",
                      [Query("60 * sum(rate(queuectl_admitted_workloads_total[$__rate_interval]))", "admitted"),
                       Query("60 * sum(rate(queuectl_finished_workloads_total[$__rate_interval]))", "finished"),
                       Query("60 * sum(rate(queuectl_evicted_workloads_total[$__rate_interval]))", "evicted")], "short"),
            ),
        ),
    ),
)  # fmt: skip
