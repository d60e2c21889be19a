"""The health of the controller: leadership, cycle, solver, writes, watches and process."""

from __future__ import annotations

from typing import Final

from deploy.grafana.dashboards.board import Board, Look, Panel, Query, Unit

CONTROLLER: Final = Board(
    uid="queuectl-controller",
    title="queuectl / Controller health",
    text="The health of queuectl: leadership, duration of each stage of a cycle, solver, writes to the API server, watches.",
    rows=(
        (
            "Leadership",
            (
                Panel("Leader (1 = leads)", "Exactly one instance has the value 1.",
                      [Query("queuectl_leader", "{{instance}}")], Unit.COUNT, width=6, height=6),
                Panel("Leader epoch", "Increases with each change of leadership. Frequent changes: see the alert QueuectlLeaderFlapping.",
                      [Query("max(queuectl_leader_epoch)", "epoch")], Unit.COUNT, width=6, height=6),
                Panel("Versions", "The release that each instance runs.", [Query("queuectl_build_info", "value")], Unit.COUNT,
                      Look.TABLE, width=6, height=6, columns={"instance": "Instance", "version": "Version"}),
                Panel("Uptime", "Time since the start of each process.", [Query("time() - process_start_time_seconds", "{{instance}}")],
                      Unit.SECONDS, width=6, height=6),
            ),
        ),
        (
            "Planning cycle",
            (
                Panel("Stage duration (p95)", "Stages in order: observe, freeze (snapshot), plan, verify, commit. The stage actuate is"
                      " the time from the commit until the watch confirms the writes.",
                      [Query("histogram_quantile(0.95, sum by (le, stage) (rate(queuectl_cycle_stage_duration_seconds_bucket[$__rate_interval])))",
                             "{{stage}}")], Unit.SECONDS),
                Panel("Time in each stage (% of one thread)", "100% means that cycles follow each other without a pause.",
                      [Query('sum by (stage) (rate(queuectl_cycle_stage_duration_seconds_sum{stage!="actuate"}[$__rate_interval]))',
                             "{{stage}}")], Unit.SHARE, Look.STACK),
                Panel("Planning cycles per second", "success: the cycle admitted at least one gang. inadmissible: it admitted none.",
                      [Query("sum by (result) (rate(queuectl_admission_attempts_total[$__rate_interval]))", "{{result}}")], Unit.PER_SECOND),
                Panel("Plans per second by proof", "optimal: proved. feasible: a limit of the solver ended the proof. undecided: a limit ended"
                      " the search before an answer.",
                      [Query("sum by (result) (rate(queuectl_plans_total[$__rate_interval]))", "{{result}}")], Unit.PER_SECOND),
                Panel("Discarded plans (last hour)", "cut: planning exceeded its time limit. stale: the configuration changed. fenced: another"
                      " replica leads. unavailable: the database did not answer. verifier: a defect.",
                      [Query("sum by (reason) (increase(queuectl_discarded_plans_total[1h]))", "{{reason}}")], Unit.PLANS),
                Panel("Solver failures and limits (last hour)", "failed: a defect of a model or of the solver. ended by a limit: the controller"
                      " tries again with a larger limit.",
                      [Query("increase(queuectl_solver_alarms_total[1h])", "failed"),
                       Query("increase(queuectl_solver_unknown_total[1h])", "ended by a limit")], Unit.COUNT),
            ),
        ),
        (
            "API server",
            (
                Panel("Writes per second", "Writes to the API server, by kind of object and result.",
                      [Query("sum by (kind, result) (rate(queuectl_cluster_writes_total[$__rate_interval]))", "{{kind}} {{result}}")],
                      Unit.PER_SECOND, empty="No writes since the start of the controller."),
                Panel("Write duration (p95)", "Duration of a write to the API server, as the controller measures it.",
                      [Query("histogram_quantile(0.95, sum by (le, kind) (rate(queuectl_cluster_write_duration_seconds_bucket[$__rate_interval])))",
                             "{{kind}}")], Unit.SECONDS, empty="No writes in the time range."),
                Panel("Unconfirmed writes (gangs)", "Committed starts, stops and moves that the watch has not confirmed yet. Starts or stops whose"
                      " number does not fall: see the alert QueuectlWritesNotConfirmed.",
                      [Query("queuectl_outbox_intents", "{{kind}}")], Unit.GANGS, Look.STACK,
                      empty="No start, stop or move since the start of the controller."),
                Panel("Watched objects per second", "Objects that the watches delivered, by kind.",
                      [Query("sum by (kind) (rate(queuectl_watch_events_total[$__rate_interval]))", "{{kind}}")], Unit.PER_SECOND),
                Panel("Watch age", "Time since the API server last answered the watch. It sends a bookmark every minute.",
                      [Query("time() - queuectl_watch_last_event_timestamp_seconds", "{{instance}} {{kind}}")], Unit.SECONDS),
                Panel("Complete lists (last hour)", "Times that a watch started again with a complete list of its kind.",
                      [Query("sum by (kind) (increase(queuectl_watch_relists_total[1h]))", "{{kind}}")], Unit.COUNT),
            ),
        ),
        (
            "Process",
            (
                Panel("CPU (cores)", "CPU time per second of each process.", [Query("rate(process_cpu_seconds_total[$__rate_interval])", "{{instance}}")],
                      Unit.CORES, width=8),
                Panel("Memory (bytes)", "Resident memory of each process.", [Query("process_resident_memory_bytes", "{{instance}}")],
                      Unit.BYTES, width=8),
                Panel("Open file descriptors (% of the limit)", "At 100% the process cannot open connections.",
                      [Query("process_open_fds / process_max_fds", "{{instance}}")], Unit.SHARE, width=8),
            ),
        ),
    ),
)  # fmt: skip
