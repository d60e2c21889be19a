"""The table of all commands."""

from __future__ import annotations

from typing import Final

from queuectl.cli.extras import Extra
from queuectl.cli.lazy import LazyCommand, Reader

COMMANDS: Final = {
    "get": LazyCommand(
        "queuectl.cli.get:get_command",
        "List or watch workloads, queues, nodes and events.",
        Reader.SUBMITTER,
    ),
    "describe": LazyCommand(
        "queuectl.cli.describe:describe_command", "Show one object in full.", Reader.SUBMITTER
    ),
    "explain": LazyCommand(
        "queuectl.cli.explain:explain_command",
        "Show why a workload is pending, and what would help.",
        Reader.SUBMITTER,
    ),
    "whatif": LazyCommand(
        "queuectl.cli.whatif:whatif_command",
        "Show what jobs or changes would do, before you apply them.",
        Reader.SUBMITTER,
    ),
    "history": LazyCommand(
        "queuectl.cli.history:history_command",
        "Show the starts, evictions and holds of a workload.",
        Reader.SUBMITTER,
    ),
    "eff": LazyCommand(
        "queuectl.cli.eff:eff_command",
        "Show how well a workload uses its GPUs, CPU and memory.",
        Reader.SUBMITTER,
    ),
    "wait": LazyCommand(
        "queuectl.cli.wait:wait_command",
        "Wait until a workload runs or has finished.",
        Reader.SUBMITTER,
    ),
    "logs": LazyCommand(
        "queuectl.cli.logs:logs_command",
        "Print the logs of a workload's pods, by rank.",
        Reader.SUBMITTER,
    ),
    "cancel": LazyCommand(
        "queuectl.cli.cancel:cancel_command",
        "Delete the jobs of workloads.",
        Reader.SUBMITTER,
    ),
    "top": LazyCommand(
        "queuectl.cli.top:top_command", "Show queues and gangs live.", Reader.SUBMITTER
    ),
    "hold": LazyCommand(
        "queuectl.cli.ask:hold_command", "Keep a workload from admission.", Reader.SUBMITTER
    ),
    "release": LazyCommand(
        "queuectl.cli.ask:release_command", "Release a held workload.", Reader.SUBMITTER
    ),
    "requeue": LazyCommand(
        "queuectl.cli.ask:requeue_command",
        "End a back-off, or evict and requeue a workload.",
        Reader.SUBMITTER,
    ),
    "move": LazyCommand(
        "queuectl.cli.ask:move_command",
        "Move a pending workload to another LocalQueue.",
        Reader.SUBMITTER,
    ),
    "subscribe": LazyCommand(
        "queuectl.cli.subscribe:subscribe_command",
        "Subscribe to events of jobs by email, Slack or a webhook.",
        Reader.SUBMITTER,
    ),
    "stop": LazyCommand(
        "queuectl.cli.stop:stop_command", "Stop the admission of a queue's gangs.", Reader.LEAD
    ),
    "resume": LazyCommand(
        "queuectl.cli.stop:resume_command", "Resume a stopped queue.", Reader.LEAD
    ),
    "priority": LazyCommand(
        "queuectl.cli.ask:priority_command", "Set the priority of a workload.", Reader.LEAD
    ),
    "preempt": LazyCommand(
        "queuectl.cli.ask:preempt_command",
        "Evict a workload so that the next one can start.",
        Reader.LEAD,
    ),
    "deactivate": LazyCommand(
        "queuectl.cli.ask:deactivate_command",
        "Stop a workload until it is activated.",
        Reader.LEAD,
    ),
    "activate": LazyCommand(
        "queuectl.cli.ask:activate_command", "Activate a deactivated workload.", Reader.LEAD
    ),
    "check": LazyCommand(
        "queuectl.cli.ask:check_command",
        "Report the state of an admission check of a workload.",
        Reader.LEAD,
    ),
    "report": LazyCommand(
        "queuectl.cli.report:report_command",
        "Report GPU-hours, cost, waste, waits, efficiency and budgets.",
        Reader.LEAD,
    ),
    "mcp": LazyCommand(
        "queuectl.cli.mcp:mcp_command",
        "Serve read-only tools for an AI assistant.",
        Reader.LEAD,
        extra=Extra.MCP,
        own_text=True,
    ),
    "init": LazyCommand(
        "queuectl.cli.init:init_command",
        "Propose queues for the nodes of a cluster.",
        Reader.ADMINISTRATOR,
    ),
    "apply": LazyCommand(
        "queuectl.cli.apply:apply_command",
        "Create or replace configuration from files.",
        Reader.ADMINISTRATOR,
    ),
    "delete": LazyCommand(
        "queuectl.cli.delete:delete_command", "Delete configuration.", Reader.ADMINISTRATOR
    ),
    "sendtest": LazyCommand(
        "queuectl.cli.subscribe:sendtest_command",
        "Send a test event to a receiver of events.",
        Reader.ADMINISTRATOR,
    ),
    "topup": LazyCommand(
        "queuectl.cli.topup:topup_command",
        "Add GPU-hours to one month of a Budget.",
        Reader.ADMINISTRATOR,
    ),
    "config": LazyCommand(
        "queuectl.cli.config:app",
        "Export configuration, compare it with files, or read prices.",
        Reader.ADMINISTRATOR,
    ),
    "plan": LazyCommand(
        "queuectl.cli.plan:plan_command",
        "Plan the objects of files, without a server.",
        Reader.ADMINISTRATOR,
        extra=Extra.PLANNER,
    ),
    "simulate": LazyCommand(
        "queuectl.cli.simulate:simulate_command",
        "Simulate a trace of jobs, without a server.",
        Reader.ADMINISTRATOR,
        extra=Extra.PLANNER,
    ),
    "trace": LazyCommand(
        "queuectl.cli.trace:trace_command",
        "Print recorded jobs as a trace for simulations.",
        Reader.ADMINISTRATOR,
    ),
    "advise": LazyCommand(
        "queuectl.cli.advise:advise_command",
        "Rank changes of queues and policies for a trace of jobs.",
        Reader.ADMINISTRATOR,
        extra=Extra.PLANNER,
    ),
    "serve": LazyCommand(
        "queuectl.cli.serve:serve_command",
        "Run the controller, its REST API and its metrics.",
        Reader.ADMINISTRATOR,
        extra=Extra.SERVER,
        own_text=True,
    ),
    "webhook": LazyCommand(
        "queuectl.cli.webhook:webhook_command",
        "Serve the mutating webhook that Kubernetes before 1.36 needs.",
        Reader.ADMINISTRATOR,
        extra=Extra.SERVER,
        own_text=True,
    ),
    "db": LazyCommand(
        "queuectl.cli.db:app",
        "Show or upgrade the database schema.",
        Reader.ADMINISTRATOR,
        extra=Extra.SERVER,
    ),
    "kueue": LazyCommand(
        "queuectl.cli.kueue:app",
        "Hand the running gangs over to Kueue.",
        Reader.ADMINISTRATOR,
        extra=Extra.SERVER,
    ),
    "drain": LazyCommand(
        "queuectl.cli.drain:drain_command",
        "Wait until no gang holds cordoned nodes, or move the gangs.",
        Reader.ADMINISTRATOR,
    ),
    "doctor": LazyCommand(
        "queuectl.cli.doctor.command:doctor_command",
        "Check the server, the database and the cluster.",
        Reader.ON_CALL,
    ),
    "audit": LazyCommand(
        "queuectl.cli.audit:audit_command",
        "List changes and refused requests, with their users.",
        Reader.ON_CALL,
    ),
    "recover": LazyCommand(
        "queuectl.cli.recover:recover_command",
        "Rebuild the ledger from the cluster after a database loss.",
        Reader.ON_CALL,
        extra=Extra.SERVER,
    ),
    "demo": LazyCommand(
        "queuectl.cli.demo:demo_command",
        "Run a local control plane and a minute of gangs.",
        Reader.NEWCOMER,
        extra=Extra.DEMO,
        own_text=True,
    ),
    "localcluster": LazyCommand(
        "queuectl.localcluster.commands:app",
        "Run a Kubernetes control plane on this machine.",
        Reader.NEWCOMER,
        extra=Extra.DEMO,
        own_text=True,
    ),
    "help": LazyCommand(
        "queuectl.cli.help:help_command", "Show the help of a command.", Reader.ANYONE
    ),
    "options": LazyCommand(
        "queuectl.cli.help:options_command",
        "List the options of the connection.",
        Reader.ANYONE,
    ),
    "completion": LazyCommand(
        "queuectl.cli.program:completion_command",
        "Print the completion script of a shell.",
        Reader.ANYONE,
    ),
    "version": LazyCommand(
        "queuectl.cli.program:version_command", "Print the version.", Reader.ANYONE
    ),
}
"""By name, in the order of the help."""

FIRST: Final = ("get", "explain", "whatif", "history", "top", "hold")
"""The commands that a submitter needs first."""
