"""One queue or cohort: its quota, what it borrows and lends, its share, and who waits in it and why."""

from __future__ import annotations

from typing import Final

from deploy.grafana.dashboards.board import Board, Look, Panel, Query, Variable

ROW: Final = 'cluster_queue=~"$cluster_queue",resource="$resource"'
ONE: Final = 'cluster_queue=~"$cluster_queue"'
BY: Final = "sum by (cluster_queue)"

QUEUES: Final = Board(
    uid="queuectl-queues",
    title="queuectl / Queues and cohorts",
    text="Quota, borrowing and shares of ClusterQueues and Cohorts, and what waits in them.",
    variables=(
        Variable("resource", "Resource", "queuectl_cluster_queue_nominal_quota", one="nvidia.com/gpu"),
        Variable("cluster_queue", "ClusterQueue", "queuectl_cluster_queue_info"),
    ),
    rows=(
        (
            "Quota",
            (
                Panel("Use of nominal quota", "Above 100 %: it borrows.",
                      [Query(f"{BY} (queuectl_cluster_queue_resource_usage{{{ROW}}}) / {BY} (queuectl_cluster_queue_nominal_quota{{{ROW}}} > 0)",
                             "{{cluster_queue}}")], "percentunit", Look.BARS, 8),
                Panel("Use and quota", "What gangs hold, against the nominal quota.",
                      [Query(f"{BY} (queuectl_cluster_queue_resource_usage{{{ROW}}})", "{{cluster_queue}} used"),
                       Query(f"{BY} (queuectl_cluster_queue_nominal_quota{{{ROW}}})", "{{cluster_queue}} nominal")], width=8),
                Panel("Borrowed", "What is held beyond the nominal quota, by flavor.",
                      [Query(f"clamp_min(queuectl_cluster_queue_resource_usage{{{ROW}}} - queuectl_cluster_queue_nominal_quota{{{ROW}}}, 0)",
                             "{{cluster_queue}} {{flavor}}")], width=8),
                Panel("Limits", "Nominal quota, limits and use of each flavor, now.",
                      [Query(f"queuectl_cluster_queue_nominal_quota{{{ROW}}}", "nominal"),
                       Query(f"queuectl_cluster_queue_borrowing_limit{{{ROW}}}", "borrowing limit"),
                       Query(f"queuectl_cluster_queue_lending_limit{{{ROW}}}", "lending limit"),
                       Query(f"queuectl_cluster_queue_resource_usage{{{ROW}}}", "used")], look=Look.TABLE, width=24),
            ),
        ),
        (
            "Shares",
            (
                Panel("Share of ClusterQueues", "Dominant resource share in thousandths, over the weight: who has the least goes first.",
                      [Query(f"queuectl_cluster_queue_weighted_share{{{ONE}}}", "{{cluster_queue}}")], width=12),
                Panel("Share of Cohorts", "The same of Cohorts within their parents.",
                      [Query("queuectl_cohort_weighted_share", "{{cohort}}")], width=12),
                Panel("Cohorts: use and shared quota", "What gangs in a Cohort hold or have kept, beside its own quota and what its members lend."
                      " Use may be more: it includes what members keep to themselves.",
                      [Query('sum by (cohort) (queuectl_cohort_subtree_resource_reservations{resource="$resource"})', "{{cohort}} used"),
                       Query('sum by (cohort) (queuectl_cohort_subtree_quota{resource="$resource"})', "{{cohort}} shared")], width=12),
                Panel("Past use of LocalQueues", "With usage-based fairness: who used less goes first.",
                      [Query(f"queuectl_local_queue_admission_fair_sharing_usage{{{ONE}}}", "{{namespace}}/{{name}}")], width=12),
            ),
        ),
        (
            "Who waits",
            (
                Panel("Waiting by reason", "The reason each gang was last told.",
                      [Query(f"sum by (reason) (queuectl_pending_workloads{{{ONE}}})", "{{reason}}")], look=Look.STACK),
                Panel("Waiting by queue", "Held and in back-off included.",
                      [Query(f"{BY} (queuectl_pending_workloads{{{ONE}}})", "{{cluster_queue}}")], look=Look.STACK),
                Panel("Asked for", "What gangs that queue ask for.",
                      [Query(f"queuectl_cluster_queue_resource_pending{{{ROW}}}", "{{cluster_queue}}")], look=Look.STACK),
                Panel("Wait for admission", "95 % of the gangs admitted lately waited less than this.",
                      [Query(f"histogram_quantile(0.95, sum by (le, cluster_queue) (rate(queuectl_admission_wait_time_seconds_bucket{{{ONE}}}[30m])))",
                             "{{cluster_queue}}")], "s", width=12),
                Panel("Wait by priority class", "Half of the gangs admitted lately waited less than this.",
                      [Query(f"histogram_quantile(0.5, sum by (le, priority_class) (rate(queuectl_admission_wait_time_seconds_bucket{{{ONE}}}[30m])))",
                             "{{priority_class}}")], "s", width=12),
                Panel("States", "Unfinished gangs by state.",
                      [Query(f"sum by (status) (queuectl_workloads{{{ONE}}})", "{{status}}")], look=Look.STACK, width=12),
                Panel("LocalQueues", "Waiting gangs of each LocalQueue.",
                      [Query("sum by (namespace, name) (queuectl_local_queue_pending_workloads)", "{{namespace}}/{{name}}")],
                      look=Look.STACK, width=12),
            ),
        ),
        (
            "When it starts",
            (
                Panel("Estimated wait", "Half of the gangs that were first given an estimated start lately were told less than this.",
                      [Query(f"histogram_quantile(0.5, sum by (le, cluster_queue) (rate(queuectl_estimated_wait_seconds_bucket{{{ONE}}}[30m])))",
                             "{{cluster_queue}}")], "s"),
                Panel("Error of estimates", "Of the gangs with an estimate that started lately, half started nearer to it than the lower line, earlier or later,"
                      " and 95 % nearer than the upper one.",
                      [Query(f"histogram_quantile(0.5, sum by (le) (rate(queuectl_estimated_wait_error_seconds_bucket{{{ONE}}}[30m])))", "half"),
                       Query(f"histogram_quantile(0.95, sum by (le) (rate(queuectl_estimated_wait_error_seconds_bucket{{{ONE}}}[30m])))", "95 %")], "s"),
                Panel("Starts that had an estimate", "Gangs that start as soon as they come, or without knowing how long others run, have none.",
                      [Query(f"{BY} (rate(queuectl_estimated_wait_error_seconds_count{{{ONE}}}[30m]))"
                             f" / {BY} (rate(queuectl_admitted_workloads_total{{{ONE}}}[30m]))",
                             "{{cluster_queue}}")], "percentunit"),
            ),
        ),
    ),
)  # fmt: skip
