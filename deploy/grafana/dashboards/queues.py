"""Quota, borrowing, fair sharing and pending gangs of ClusterQueues, LocalQueues and Cohorts; Budgets and Reservations."""

from __future__ import annotations

from typing import Final

from deploy.grafana.dashboards.board import Board, Look, Panel, Query, Unit, Variable

ROW: Final = 'cluster_queue=~"$cluster_queue",resource="$resource"'
ONE: Final = 'cluster_queue=~"$cluster_queue"'
BY: Final = "sum by (cluster_queue)"
FLAVORS: Final = "sum by (cohort, cluster_queue, flavor)"
NO_START: Final = "No gang has started in the last 30 minutes."
NO_ESTIMATE: Final = "No gang with an expected start in the last 30 minutes."
NO_BUDGET: Final = "No Budget is configured."
NO_RUN: Final = "No gang with an expected run time has finished in the last 30 minutes."

QUEUES: Final = Board(
    uid="queuectl-queues",
    title="queuectl / Queues and cohorts",
    text="Quota, borrowing and fair sharing of ClusterQueues and Cohorts, their pending gangs, expected starts, Budgets and Reservations.",
    variables=(
        Variable("resource", "Resource", "queuectl_cluster_queue_nominal_quota", one="nvidia.com/gpu"),
        Variable("cluster_queue", "ClusterQueue", "queuectl_cluster_queue_info"),
    ),
    rows=(
        (
            "Quota of $resource",
            (
                Panel("Use of nominal quota (%)", "Above 100% the ClusterQueue borrows.",
                      [Query(f"{BY} (queuectl_cluster_queue_resource_usage{{{ROW}}}) / {BY} (queuectl_cluster_queue_nominal_quota{{{ROW}}} > 0)",
                             "{{cluster_queue}}")], Unit.SHARE, Look.BARS, 8),
                Panel("Used and nominal quota ($resource)", "The amount that gangs hold, and the nominal quota.",
                      [Query(f"{BY} (queuectl_cluster_queue_resource_usage{{{ROW}}})", "{{cluster_queue}} used"),
                       Query(f"{BY} (queuectl_cluster_queue_nominal_quota{{{ROW}}})", "{{cluster_queue}} nominal")], Unit.RESOURCE, width=8),
                Panel("Borrowed $resource by flavor", "The amount that gangs hold beyond the nominal quota.",
                      [Query(f"clamp_min(queuectl_cluster_queue_resource_usage{{{ROW}}} - queuectl_cluster_queue_nominal_quota{{{ROW}}}, 0)",
                             "{{cluster_queue}} {{flavor}}")], Unit.RESOURCE, width=8),
                Panel("Quota, limits and use by flavor ($resource)", "If a limit has no value, use is not limited.",
                      [Query(f"{FLAVORS} (queuectl_cluster_queue_nominal_quota{{{ROW}}})", "nominal"),
                       Query(f"{FLAVORS} (queuectl_cluster_queue_borrowing_limit{{{ROW}}})", "borrowing"),
                       Query(f"{FLAVORS} (queuectl_cluster_queue_lending_limit{{{ROW}}})", "lending"),
                       Query(f"{FLAVORS} (queuectl_cluster_queue_resource_usage{{{ROW}}})", "used")], Unit.RESOURCE, Look.TABLE, 24,
                      empty="-",
                      columns={"cluster_queue": "ClusterQueue", "cohort": "Cohort", "flavor": "Flavor", "nominal": "Nominal quota",
                               "borrowing": "Borrowing limit", "lending": "Lending limit", "used": "Used"}),
            ),
        ),
        (
            "Fair sharing",
            (
                Panel("Weighted share of ClusterQueues (thousandths)", "Dominant resource share of borrowed quota, divided by the weight. The queue with"
                      " the smallest share is considered first.",
                      [Query(f"queuectl_cluster_queue_weighted_share{{{ONE}}}", "{{cluster_queue}}")], Unit.COUNT, width=12),
                Panel("Weighted share of Cohorts (thousandths)", "The same value for each Cohort within its parent.",
                      [Query("queuectl_cohort_weighted_share", "{{cohort}}")], Unit.COUNT, width=12, empty="No Cohort is configured."),
                Panel("Used and shared quota of Cohorts ($resource)", "Used: held or reserved by gangs of the Cohort. Shared: its own quota and the quota"
                      " that its members lend. Used can exceed shared, because it includes quota that members do not lend.",
                      [Query('sum by (cohort) (queuectl_cohort_subtree_resource_reservations{resource="$resource"})', "{{cohort}} used"),
                       Query('sum by (cohort) (queuectl_cohort_subtree_quota{resource="$resource"})', "{{cohort}} shared")],
                      Unit.RESOURCE, width=12, empty="No Cohort is configured."),
                Panel("Past use of LocalQueues (weighted)", "With usage-based fair sharing, gangs of the LocalQueue with the least past use are considered first.",
                      [Query(f"queuectl_local_queue_admission_fair_sharing_usage{{{ONE}}}", "{{namespace}}/{{name}}")], Unit.COUNT, width=12,
                      empty="No ClusterQueue uses usage-based fair sharing (spec.admissionScope)."),
            ),
        ),
        (
            "Pending gangs",
            (
                Panel("Pending gangs by reason", "The current reason of each gang.",
                      [Query(f"sum by (reason) (queuectl_pending_workloads{{{ONE}}})", "{{reason}}")], Unit.GANGS, Look.STACK),
                Panel("Pending gangs by ClusterQueue", "Held gangs and gangs in back-off are included.",
                      [Query(f"{BY} (queuectl_pending_workloads{{{ONE}}})", "{{cluster_queue}}")], Unit.GANGS, Look.STACK),
                Panel("Requested $resource", "Requests of the pending gangs.",
                      [Query(f"queuectl_cluster_queue_resource_pending{{{ROW}}}", "{{cluster_queue}}")], Unit.RESOURCE, Look.STACK,
                      empty="No gang has been pending since the controller took the lead."),
                Panel("Admission wait time by ClusterQueue (p95)", "Time from submission to first admission. Over 30 minutes.",
                      [Query(f"histogram_quantile(0.95, sum by (le, cluster_queue) (rate(queuectl_admission_wait_time_seconds_bucket{{{ONE}}}[30m])))",
                             "{{cluster_queue}}")], Unit.SECONDS, width=12, empty=NO_START),
                Panel("Admission wait time by priority class (p50)", "Time from submission to first admission. Over 30 minutes.",
                      [Query(f"histogram_quantile(0.5, sum by (le, priority_class) (rate(queuectl_admission_wait_time_seconds_bucket{{{ONE}}}[30m])))",
                             "class {{priority_class}}")], Unit.SECONDS, width=12, empty=NO_START),
                Panel("Unfinished gangs by state", "Pending, Reserved, Starting, Running, Evicting, Held and Deactivated gangs.",
                      [Query(f"sum by (status) (queuectl_workloads{{{ONE}}})", "{{status}}")], Unit.GANGS, Look.STACK, 12),
                Panel("Pending gangs by LocalQueue", "All namespaces, whatever ClusterQueue is selected.",
                      [Query("sum by (namespace, name) (queuectl_local_queue_pending_workloads)", "{{namespace}}/{{name}}")],
                      Unit.GANGS, Look.STACK, 12),
            ),
        ),
        (
            "Expected starts",
            (
                Panel("Expected wait time (p50)", "Time until the median of the expected start, when a gang first has one. Over 30 minutes.",
                      [Query(f"histogram_quantile(0.5, sum by (le, cluster_queue) (rate(queuectl_estimated_wait_seconds_bucket{{{ONE}}}[30m])))",
                             "{{cluster_queue}}")], Unit.SECONDS, width=12, empty=NO_ESTIMATE),
                Panel("Error of the estimate (p50, p95)", "Time between the median of the expected start and the actual start, earlier or later. Over 30 minutes.",
                      [Query(f"histogram_quantile(0.5, sum by (le) (rate(queuectl_estimate_error_seconds_bucket{{{ONE}}}[30m])))", "p50"),
                       Query(f"histogram_quantile(0.95, sum by (le) (rate(queuectl_estimate_error_seconds_bucket{{{ONE}}}[30m])))", "p95")],
                      Unit.SECONDS, width=12, empty=NO_ESTIMATE),
                Panel("Starts by the median and by the 90th percentile (%)", "If the estimates are right, half of the gangs start by the median, and 90% by the 90th percentile. Over 6 hours.",
                      [Query(f"sum(increase(queuectl_estimated_starts_total{{{ONE}, result='by-median'}}[6h])) / (sum(increase(queuectl_estimated_starts_total{{{ONE}}}[6h])) > 0)", "by the median"),
                       Query(f"sum(increase(queuectl_estimated_starts_total{{{ONE}, result=~'by-median|by-p90'}}[6h])) / (sum(increase(queuectl_estimated_starts_total{{{ONE}}}[6h])) > 0)", "by the 90th percentile")],
                      Unit.SHARE, width=12, empty=NO_ESTIMATE),
                Panel("Starts with an estimate (%)", "A gang that starts at once has no estimate, nor has a gang that waits for others of unknown run time.",
                      [Query(f"{BY} (rate(queuectl_estimate_error_seconds_count{{{ONE}}}[30m]))"
                             f" / ({BY} (rate(queuectl_admitted_workloads_total{{{ONE}}}[30m])) > 0)",
                             "{{cluster_queue}}")], Unit.SHARE, width=12, empty=NO_ESTIMATE),
            ),
        ),
        (
            "Planned starts and run times",
            (
                Panel("Planned starts that moved, by cause", "Planned starts that became later in the last 30 minutes. All ClusterQueues with queueingStrategy: Backfill.",
                      [Query(f"sum by (cause) (increase(queuectl_planned_start_slips_total{{{ONE}}}[30m]))", "{{cause}}")], Unit.COUNT,
                      empty="No planned start has moved in the last 30 minutes."),
                Panel("Error of expected run times (p50, p95)", "Difference between the expected and the actual run time, by source. Over 30 minutes, in all ClusterQueues.",
                      [Query("histogram_quantile(0.5, sum by (le, source) (rate(queuectl_duration_error_seconds_bucket[30m])))", "{{source}} p50"),
                       Query("histogram_quantile(0.95, sum by (le, source) (rate(queuectl_duration_error_seconds_bucket[30m])))", "{{source}} p95")],
                      Unit.SECONDS, empty=NO_RUN),
                Panel("Gangs that ended as expected (%)", "Finished gangs that ended within the run time that planning assumed, by source. Over 30 minutes, in all ClusterQueues.",
                      [Query('sum by (source) (rate(queuectl_duration_runs_total{within="true"}[30m]))'
                             " / (sum by (source) (rate(queuectl_duration_runs_total[30m])) > 0)", "{{source}}")], Unit.SHARE, empty=NO_RUN),
            ),
        ),
        (
            "Budgets and Reservations",
            (
                Panel("Use of Budgets in this month (%)", "Used, and what running gangs use until their ends, of the GPU-hours of the month with top-ups. All Budgets.",
                      [Query("max by (budget) (queuectl_budget_spent_gpu_seconds + queuectl_budget_committed_gpu_seconds)"
                             " / (max by (budget) (queuectl_budget_granted_gpu_seconds) > 0)", "{{budget}}")],
                      Unit.SHARE, Look.BARS, 12, empty=NO_BUDGET),
                Panel("Left in Budgets (GPU-hours)", "GPU-hours that pending gangs can still spend in this month. Below 0, running gangs use more than is granted.",
                      [Query("max by (budget) (queuectl_budget_granted_gpu_seconds - queuectl_budget_spent_gpu_seconds"
                             " - queuectl_budget_committed_gpu_seconds) / 3600", "{{budget}}")], Unit.GPU_HOURS, width=12, empty=NO_BUDGET),
                Panel("Reservations by phase", "NotPlaceable: no placement is known, so the Reservation cannot be honored. Gangs that wait for one"
                      " have the reason ReservationAhead in Pending gangs by reason.",
                      [Query("max by (phase) (queuectl_reservations)", "{{phase}}")], Unit.COUNT, Look.STACK, 24),
            ),
        ),
    ),
)  # fmt: skip
