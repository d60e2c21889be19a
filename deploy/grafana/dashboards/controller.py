"""The controller's own health: cycles, solver, writes, watches, leadership."""

from __future__ import annotations

from typing import Final

from deploy.grafana.dashboards.board import Board, Look, Panel, Query

CONTROLLER: Final = Board(
    uid="queuectl-controller",
    title="queuectl / Controller health",
    text="Whether queuectl itself is well: time of each stage of a cycle, the solver, the API server, the watches.",
    rows=(
        (
            "Leadership and readiness",
            (
                Panel("Leader", "1 on the instance that leads.", [Query("queuectl_leader", "{{instance}}")], width=6, height=6),
                Panel("Epoch", "Climbs with each new leader. Often: it flaps.", [Query("max(queuectl_leader_epoch)", "epoch")],
                      width=6, height=6),
                Panel("Version", "What runs.", [Query("queuectl_build_info", "{{version}}")], look=Look.TABLE, width=6, height=6),
                Panel("Up since", "Age of the process.", [Query("time() - process_start_time_seconds", "{{instance}}")], "s",
                      width=6, height=6),
            ),
        ),
        (
            "Cycle",
            (
                Panel("Stages, 95 %", "observe, freeze, plan, verify, commit; actuate is commit to echo.",
                      [Query("histogram_quantile(0.95, sum by (le, stage) (rate(queuectl_cycle_stage_duration_seconds_bucket[$__rate_interval])))",
                             "{{stage}}")], "s"),
                Panel("Planning time", "Seconds of each second spent in each stage.",
                      [Query("sum by (stage) (rate(queuectl_cycle_stage_duration_seconds_sum[$__rate_interval]))", "{{stage}}")],
                      "percentunit", Look.STACK),
                Panel("Attempts", "Plans a second; success: at least one gang was admitted.",
                      [Query("sum by (result) (rate(queuectl_admission_attempts_total[$__rate_interval]))", "{{result}}")], "ops"),
                Panel("Proof", "Plans a second by how sure the answer is.",
                      [Query("sum by (result) (rate(queuectl_plans_total[$__rate_interval]))", "{{result}}")], "ops"),
                Panel("Discarded plans", "verifier is a defect; cut: planning needs more CPU or smaller limits.",
                      [Query("sum by (reason) (increase(queuectl_discarded_plans_total[1h]))", "{{reason}}")]),
                Panel("Solver", "Solves that broke (a defect), and that a limit ended.",
                      [Query("increase(queuectl_solver_alarms_total[1h])", "broke"),
                       Query("increase(queuectl_solver_unknown_total[1h])", "ended by a limit")]),
            ),
        ),
        (
            "Cluster",
            (
                Panel("Writes", "To the API server, by kind and result.",
                      [Query("sum by (kind, result) (rate(queuectl_cluster_writes_total[$__rate_interval]))", "{{kind}} {{result}}")],
                      "ops"),
                Panel("Time of a write, 95 %", "As the controller sees it.",
                      [Query("histogram_quantile(0.95, sum by (le, kind) (rate(queuectl_cluster_write_duration_seconds_bucket[$__rate_interval])))",
                             "{{kind}}")], "s"),
                Panel("Not confirmed", "Starts and stops that the watch has not echoed.",
                      [Query("queuectl_outbox_intents", "{{kind}}")], look=Look.STACK),
                Panel("Watched objects", "Objects a second, by kind.",
                      [Query("sum by (kind) (rate(queuectl_watch_events_total[$__rate_interval]))", "{{kind}}")], "ops"),
                Panel("Silence", "Since the watch last said anything; bookmarks come every minute.",
                      [Query("time() - queuectl_watch_last_event_timestamp_seconds", "{{kind}}")], "s"),
                Panel("Complete lists", "Watches that had to start over, in the last hour.",
                      [Query("sum by (kind) (increase(queuectl_watch_relists_total[1h]))", "{{kind}}")]),
            ),
        ),
        (
            "Process",
            (
                Panel("CPU", "Cores.", [Query("rate(process_cpu_seconds_total[$__rate_interval])", "{{instance}}")], width=8),
                Panel("Memory", "Resident.", [Query("process_resident_memory_bytes", "{{instance}}")], "bytes", width=8),
                Panel("File descriptors", "Open, against the limit.",
                      [Query("process_open_fds", "{{instance}} open"), Query("process_max_fds", "{{instance}} limit")], width=8),
            ),
        ),
    ),
)  # fmt: skip
