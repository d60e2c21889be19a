"""The cluster at a glance: allocation, pending gangs, waiting times, and whether one replica leads."""

from __future__ import annotations

from typing import Final

from deploy.grafana.dashboards.board import Board, Look, Panel, Query, Unit, Variable

GPU: Final = 'resource="$resource"'
USED: Final = f"sum(queuectl_cluster_queue_resource_usage{{{GPU}}})"
OFFERED: Final = f"sum(queuectl_nodes_allocatable{{{GPU}}})"
FREE: Final = f"clamp_min({OFFERED} - {USED}, 0)"  # gangs can also hold nodes that are cordoned
PENDING: Final = f"(sum(queuectl_cluster_queue_resource_pending{{{GPU}}}) or vector(0))"
RECENT: Final = "Of gangs that were admitted in the last 30 minutes."
NO_START: Final = "No gang has started in the last 30 minutes."

OVERVIEW: Final = Board(
    uid="queuectl-overview",
    title="queuectl / Cluster overview",
    text="Allocation of the cluster, pending gangs with their reasons, and waiting times.",
    variables=(Variable("resource", "Resource", "queuectl_nodes_allocatable", one="nvidia.com/gpu"),),
    rows=(
        (
            "Now",
            (
                Panel("Allocated $resource", "The part of the allocatable amount that gangs hold. Only ready nodes count, so it is above 100% while gangs hold cordoned nodes.",
                      [Query(f"{USED} / {OFFERED}", "allocated")], Unit.SHARE, Look.NUMBER, 4, 4),
                Panel("Free $resource", "Allocatable amount of ready nodes that no gang holds. Unmanaged pods can hold a part of it.",
                      [Query(FREE, "free")], Unit.RESOURCE, Look.NUMBER, 4, 4),
                Panel("Requested $resource", "Requests of all pending gangs.", [Query(PENDING, "requested")], Unit.RESOURCE, Look.NUMBER, 4, 4),
                Panel("Running gangs", "Gangs that are starting or running.", [Query("sum(queuectl_admitted_active_workloads)", "running")],
                      Unit.GANGS, Look.NUMBER, 4, 4),
                Panel("Pending gangs", "Gangs that have not started, with held gangs and gangs in back-off.",
                      [Query("sum(queuectl_pending_workloads)", "pending")], Unit.GANGS, Look.NUMBER, 4, 4),
                Panel("Leaders (must be 1)", "0: no replica plans. See the alert QueuectlNoLeader.", [Query("sum(queuectl_leader)", "leaders")],
                      Unit.COUNT, Look.NUMBER, 4, 4),
            ),
        ),
        (
            "Allocation",
            (
                Panel("Allocated, reserved and free $resource", "Reserved: capacity that CapacityLeases keep for gangs whose victims have not stopped yet.",
                      [Query(USED, "allocated"),
                       Query(f"sum(queuectl_cluster_queue_resource_reservation{{{GPU}}}) - {USED}", "reserved"),
                       Query(f"clamp_min({OFFERED} - sum(queuectl_cluster_queue_resource_reservation{{{GPU}}}), 0)", "free")],
                      Unit.RESOURCE, Look.STACK, 12),
                Panel("Allocated $resource by ClusterQueue", "The amount that the gangs of each ClusterQueue hold.",
                      [Query(f"sum by (cluster_queue) (queuectl_cluster_queue_resource_usage{{{GPU}}})", "{{cluster_queue}}")],
                      Unit.RESOURCE, Look.STACK, 12),
                Panel("Nodes by status", "Only ready nodes take new pods.", [Query("queuectl_nodes", "{{status}}")], Unit.NODES, Look.STACK),
                Panel("Free and requested $resource", "If both are large, quota, shape or topology prevents the use. Read the reasons of the pending gangs.",
                      [Query(FREE, "free"), Query(PENDING, "requested")], Unit.RESOURCE),
                Panel("Pending gangs by reason", "The current reason of each gang.",
                      [Query("sum by (reason) (queuectl_pending_workloads)", "{{reason}}")], Unit.GANGS, Look.STACK),
                Panel("Fragmentation (GPUs)", "fragmented: free GPUs that the next pod is expected to be unable to use. inside nodes: of these,"
                      " GPUs on nodes with enough of them, but not of one PCIe root or NUMA node. stranded: free GPUs on nodes that"
                      " fit no pod of any pending or running gang. The last two are by flavor: a node of several flavors counts for each.",
                      [Query('sum(queuectl_cluster_gpus{part=~"fragmented|unallocated"})', "free"),
                       Query('sum(queuectl_cluster_gpus{part="fragmented"})', "fragmented"),
                       Query("sum by (flavor) (queuectl_fleet_fragmented_inside_nodes_gpus)", "{{flavor}} inside nodes"),
                       Query("sum by (flavor) (queuectl_fleet_stranded_gpus)", "{{flavor}} stranded")], Unit.GPUS, width=12),
                Panel("Spread (domains used / fewest possible)", "1 is best. Domains that started gangs use, over the fewest that hold them on empty nodes.",
                      [Query("sum by (level) (increase(queuectl_admitted_domains_total[1h]))"
                             " / (sum by (level) (increase(queuectl_admitted_domains_least_total[1h])) > 0)", "{{level}}")],
                      Unit.COUNT, width=12, empty="No gang has started in the last hour."),
            ),
        ),
        (
            "Waiting times and throughput",
            (
                Panel("Admission wait time (p50, p95)", f"Time from submission to first admission. {RECENT}",
                      [Query("histogram_quantile(0.5, sum by (le) (rate(queuectl_admission_wait_time_seconds_bucket[30m])))", "p50"),
                       Query("histogram_quantile(0.95, sum by (le) (rate(queuectl_admission_wait_time_seconds_bucket[30m])))", "p95")],
                      Unit.SECONDS, empty=NO_START),
                Panel("Admission until ready (p50, p95)", f"Image pulls, volumes and container starts: no queueing. {RECENT}",
                      [Query("histogram_quantile(0.5, sum by (le) (rate(queuectl_admitted_until_ready_wait_time_seconds_bucket[30m])))", "p50"),
                       Query("histogram_quantile(0.95, sum by (le) (rate(queuectl_admitted_until_ready_wait_time_seconds_bucket[30m])))", "p95")],
                      Unit.SECONDS, empty=NO_START),
                Panel("Gangs per minute", "Admitted, finished and evicted gangs.",
                      [Query("60 * sum(rate(queuectl_admitted_workloads_total[$__rate_interval]))", "admitted"),
                       Query("60 * sum(rate(queuectl_finished_workloads_total[$__rate_interval]))", "finished"),
                       Query("60 * sum(rate(queuectl_evicted_workloads_total[$__rate_interval]))", "evicted")], Unit.GANGS,
                      empty="No gang has started since the controller took the lead."),
            ),
        ),
    ),
)  # fmt: skip
