"""The whole schema of the first release."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0100_pre"
down_revision = None
branch_labels = None
depends_on = None

KEY = sa.Text(collation="C")


def upgrade() -> None:
    _workloads()
    _history()
    _commands()
    _records()
    _configuration()
    _callers()
    _marks()
    _hours()
    _processes()


def _workloads() -> None:
    """One row per workload, and what it has while it has it."""
    op.create_table(
        "workloads",
        sa.Column("uid", KEY, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("namespace", KEY, nullable=False),
        sa.Column("name", KEY, nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("cluster_queue", sa.Text(), nullable=False),
        sa.Column("priority", sa.BigInteger(), nullable=False),
        sa.Column("gpu_parts", sa.BigInteger(), nullable=False),
        sa.Column("pods", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("queued_at", sa.Double(), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.Column("requeue_at", sa.Double(), nullable=True),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("ready_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("failures", sa.BigInteger(), nullable=False),
        sa.Column("evictions", sa.BigInteger(), nullable=False),
        sa.Column("preempted_at", JSONB(), nullable=False),
        sa.Column("budget", sa.BigInteger(), nullable=False),
        sa.Column("excluded", JSONB(), nullable=False),
        sa.Column("reason_code", sa.Text(), nullable=False),
        sa.Column("reason_message", sa.Text(), nullable=False),
        sa.Column("reason_details", JSONB(), nullable=False),
        sa.Column("requeued_at", sa.Double(), nullable=True),
        sa.Column("unready_since", sa.Double(), nullable=True),
        sa.Column("past_seconds", sa.Double(), nullable=False),
        sa.Column("stop_at", sa.Double(), nullable=True),
        sa.Column("evicted_for", sa.Text(), nullable=True),
        sa.Column("parked", JSONB(), nullable=True),
        sa.Column("gates", JSONB(), nullable=False),
        sa.Column("priority_set", sa.BigInteger(), nullable=True),
        sa.Column("priority_until", sa.Double(), nullable=True),
        sa.Column("queue_set", sa.Text(), nullable=True),
        sa.Column("planned", JSONB(), nullable=True),
        sa.Column("planned_start", JSONB(), nullable=True),
        sa.Column("checks", JSONB(), nullable=True),
        sa.Column("user", KEY, nullable=False),
        sa.PrimaryKeyConstraint("uid", name=op.f("workloads_pkey")),
        postgresql_with={"fillfactor": 70},
    )
    op.create_index(
        "workloads_cluster_queue_idx", "workloads", ["cluster_queue", "namespace", "name", "uid"]
    )
    op.create_index(
        "workloads_finished_idx",
        "workloads",
        ["finished_at"],
        postgresql_where=sa.text("finished_at IS NOT NULL"),
    )
    op.create_index("workloads_listing_idx", "workloads", ["namespace", "name", "uid"])
    op.create_index(
        "workloads_live_idx", "workloads", ["uid"], postgresql_where=sa.text("finished_at IS NULL")
    )
    op.create_index("workloads_user_idx", "workloads", ["user", "namespace", "name", "uid"])
    op.create_table(
        "placements",
        sa.Column("uid", KEY, nullable=False),
        sa.Column("attempt", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("podset", KEY, nullable=False),
        sa.Column(
            "ordinal",
            sa.Integer(),
            nullable=False,
            comment="position of the podset in the workload",
        ),
        sa.Column("nodes", JSONB(), nullable=False, comment="[[node, pods], ...] in rank order"),
        sa.Column("flavors", JSONB(), nullable=False, comment="{resource: ResourceFlavor}"),
        sa.Column(
            "pods",
            sa.Integer(),
            nullable=True,
            comment="the number of pods that start; null = all pods of the podset",
        ),
        sa.Column(
            "shares",
            JSONB(),
            nullable=True,
            comment="[[pods, {resource: ResourceFlavor}], ...] by rank; null = not split over flavors",
        ),
        sa.PrimaryKeyConstraint("uid", "attempt", "podset", name=op.f("placements_pkey")),
    )
    op.create_table(
        "leases",
        sa.Column("uid", KEY, nullable=False),
        sa.Column("placement", JSONB(), nullable=False),
        sa.Column("victims", JSONB(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("uid", name=op.f("leases_pkey")),
        comment="CapacityLeases: uid is the preemptor",
    )
    op.create_table(
        "outbox",
        sa.Column("uid", KEY, nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("intent", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("uid", name=op.f("outbox_pkey")),
        comment="cluster writes not yet confirmed by the watch",
    )


def _history() -> None:
    """Append-only for each role."""
    op.create_table(
        "history",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("uid", KEY, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("namespace", KEY, nullable=False),
        sa.Column("name", KEY, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("cycle", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("from_state", sa.Text(), nullable=True),
        sa.Column("to_state", sa.Text(), nullable=False),
        sa.Column("code", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("details", JSONB(), nullable=False),
        sa.Column("placement", JSONB(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("history_pkey")),
        comment="append-only; a trigger refuses UPDATE, DELETE and TRUNCATE",
    )
    op.create_index(
        "history_evictions_idx",
        "history",
        ["id", "namespace"],
        postgresql_where=sa.text("to_state = 'Evicting'"),
    )
    op.create_index(
        "history_moves_idx", "history", ["at"], postgresql_where=sa.text("event = 'Defragmented'")
    )
    op.create_index("history_uid_id_idx", "history", ["uid", "id"])
    op.execute(
        """
        CREATE FUNCTION history_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            RAISE EXCEPTION 'history is append-only: % refused', TG_OP USING ERRCODE = 'insufficient_privilege';
        END $$
        """
    )
    op.execute(
        """
        CREATE TRIGGER history_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON history
        FOR EACH STATEMENT EXECUTE FUNCTION history_is_append_only()
        """
    )


def _commands() -> None:
    """Commands of other processes, and what the leader has decided."""
    op.create_table(
        "commands",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("uid", KEY, nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("priority", sa.BigInteger(), nullable=True),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("request_id", KEY, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column(
            "outcome",
            sa.Text(),
            nullable=True,
            comment="null until the leader has executed the command",
        ),
        sa.Column("until", sa.Double(), nullable=True),
        sa.Column("queue", sa.Text(), nullable=True),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("admin", sa.Boolean(), nullable=False),
        sa.Column("report", JSONB(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("commands_pkey")),
        sa.UniqueConstraint("request_id", name=op.f("commands_request_id_key")),
        comment="commands on workloads: the API writes them, the leader executes them",
    )
    op.create_index(
        "commands_open_idx", "commands", ["id"], postgresql_where=sa.text("outcome IS NULL")
    )
    op.create_index("commands_uid_id_idx", "commands", ["uid", "id"])
    op.create_table(
        "past_use",
        sa.Column("scope", KEY, nullable=False),
        sa.Column("key", KEY, nullable=False),
        sa.Column("resource", KEY, nullable=False),
        sa.Column("value", sa.Double(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("scope", "key", "resource", name=op.f("past_use_pkey")),
        comment="decayed use at a time; scope is LocalQueue, ClusterQueue or User",
    )
    op.create_table(
        "reservations",
        sa.Column("name", KEY, nullable=False),
        sa.Column("begins", sa.Double(), nullable=False),
        sa.Column("ends", sa.Double(), nullable=False),
        sa.Column("nodes", JSONB(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("earliest", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("reservations_pkey")),
        comment="Reservations by the last plan of the leader; nodes is [[node, pods], ...]",
    )
    op.create_table(
        "findings",
        sa.Column("singleton", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("uses", JSONB(), nullable=False),
        sa.Column("unhealthy", JSONB(), nullable=False),
        sa.Column("expected_starts", JSONB(), nullable=False),
        sa.CheckConstraint("singleton", name=op.f("findings_singleton_check")),
        sa.PrimaryKeyConstraint("singleton", name=op.f("findings_pkey")),
        comment="the last GPU utilization that the leader has measured, and its estimated starts",
    )
    op.execute(
        "INSERT INTO findings (at, uses, unhealthy, expected_starts) VALUES (0, '[]', '{}', '{}')"
    )


def _records() -> None:
    """For the analysis of decisions and of defects."""
    op.create_table(
        "decisions",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("cycle", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("history_after", sa.BigInteger(), nullable=False),
        sa.Column("history_upto", sa.BigInteger(), nullable=False),
        sa.Column("counts", JSONB(), nullable=False),
        sa.Column("reasons", JSONB(), nullable=False),
        sa.Column("proof", sa.Text(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("stats", JSONB(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("decisions_pkey")),
        comment="planning cycles that changed something; kept for a week",
    )
    op.create_table(
        "refused_plans",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("cycle", sa.BigInteger(), nullable=False),
        sa.Column("rules", JSONB(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("refused_plans_pkey")),
        comment="plans that the verifier refused, with their snapshots: the newest 20, at most 50 MiB in total",
    )
    op.create_table(
        "set_aside_objects",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("boundary", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("ref", sa.Text(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("place", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("truncated", sa.Boolean(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("set_aside_objects_pkey")),
        comment="redacted objects of units that are set aside: the newest 20, at most 256 KiB each",
    )


def _configuration() -> None:
    """Documents, their common revision, and the fence."""
    op.create_table(
        "documents",
        sa.Column("kind", KEY, nullable=False),
        sa.Column("namespace", KEY, nullable=False),
        sa.Column("name", KEY, nullable=False),
        sa.Column("document", JSONB(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "namespace", "name", name=op.f("documents_pkey")),
        comment="configuration; version is the revision that wrote the row",
    )
    op.create_table(
        "configuration",
        sa.Column("singleton", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("singleton", name=op.f("configuration_singleton_check")),
        sa.PrimaryKeyConstraint("singleton", name=op.f("configuration_pkey")),
        comment="the revision of the whole configuration",
    )
    op.create_table(
        "leadership",
        sa.Column("singleton", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column(
            "taken_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.Column("suspects", JSONB(), nullable=False),
        sa.Column("tried_at", sa.Double(), nullable=True),
        sa.CheckConstraint("singleton", name=op.f("leadership_singleton_check")),
        sa.PrimaryKeyConstraint("singleton", name=op.f("leadership_pkey")),
        comment="a commit must name this epoch; suspects are units of input that ended a process",
    )
    op.execute("INSERT INTO configuration (revision) VALUES (0)")
    op.execute("INSERT INTO leadership (epoch, holder, suspects) VALUES (0, '', '[]')")


def _callers() -> None:
    """Of the REST API."""
    op.create_table(
        "sessions",
        sa.Column("key", KEY, nullable=False),
        sa.Column("caller", sa.Text(), nullable=False),
        sa.Column("identity", JSONB(), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("sessions_pkey")),
        comment="browser sessions; key is the hash of the value of the cookie",
    )
    op.create_index(op.f("sessions_until_idx"), "sessions", ["until"])
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("caller", KEY, nullable=False),
        sa.Column("groups", JSONB(), nullable=False),
        sa.Column("method", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("operation", sa.Text(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("audit_pkey")),
        comment="requests that change something; status null = begun, outcome unknown",
    )
    op.create_index(op.f("audit_at_idx"), "audit", ["at"])
    op.create_index("audit_caller_id_idx", "audit", ["caller", "id"])


def _marks() -> None:
    """Changes of the activity of workloads, until they are added to the hours."""
    op.create_table(
        "usage_marks",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("uid", KEY, nullable=False),
        sa.Column("mark", JSONB(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("usage_marks_pkey")),
        comment="changes of activity, until they are added to usage_hours",
    )
    op.create_table(
        "usage_meters",
        sa.Column("uid", KEY, nullable=False),
        sa.Column("meter", JSONB(), nullable=False),
        sa.PrimaryKeyConstraint("uid", name=op.f("usage_meters_pkey")),
        comment="activity of each live workload since its last mark",
    )
    op.create_table(
        "usage_progress",
        sa.Column("singleton", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("until", sa.Double(), nullable=True),
        sa.CheckConstraint("singleton", name=op.f("usage_progress_singleton_check")),
        sa.PrimaryKeyConstraint("singleton", name=op.f("usage_progress_pkey")),
        comment="end of the time that usage_hours accounts for; null = none",
    )
    op.execute("INSERT INTO usage_progress DEFAULT VALUES")


def _hours() -> None:
    """The usage ledger."""
    op.create_table(
        "usage_subjects",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("uid", KEY, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("namespace", KEY, nullable=False),
        sa.Column("name", KEY, nullable=False),
        sa.Column("queue", KEY, nullable=False),
        sa.Column("cluster_queue", KEY, nullable=False),
        sa.Column("cohort", KEY, nullable=False),
        sa.Column("user", KEY, nullable=False),
        sa.Column("labels", JSONB(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("usage_subjects_pkey")),
        comment="a workload under one queue, cohort, user and set of labels",
    )
    op.create_index("usage_subjects_uid_idx", "usage_subjects", ["uid"])
    op.create_table(
        "usage_hours",
        sa.Column("hour", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("subject", sa.Uuid(), nullable=False),
        sa.Column("flavor", KEY, nullable=False),
        sa.Column("price", KEY, nullable=False),
        sa.Column("allocated", sa.Double(), nullable=False),
        sa.Column("used", sa.Double(), nullable=False),
        sa.Column("idle", sa.Double(), nullable=False),
        sa.Column("stuck", sa.Double(), nullable=False),
        sa.Column("unknown", sa.Double(), nullable=False),
        sa.Column("waited", sa.Double(), nullable=False),
        sa.Column("waiting", sa.Double(), nullable=False),
        sa.Column("cost", sa.Double(), nullable=False),
        sa.Column("unpriced", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint(
            "hour", "subject", "flavor", "price", name=op.f("usage_hours_pkey")
        ),
        comment="GPU-seconds by hour; waiting in seconds, cost in money; hour is its start in unix seconds",
        postgresql_with={"fillfactor": 70},
    )
    op.create_index("usage_hours_subject_idx", "usage_hours", ["subject"])
    op.create_table(
        "usage_losses",
        sa.Column("hour", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("subject", sa.Uuid(), nullable=False),
        sa.Column("flavor", KEY, nullable=False),
        sa.Column("reason", KEY, nullable=False),
        sa.Column("gpu_seconds", sa.Double(), nullable=False),
        sa.Column("evictions", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(
            "hour", "subject", "flavor", "reason", name=op.f("usage_losses_pkey")
        ),
        comment="work that evictions lost",
    )
    op.create_table(
        "usage_fleet",
        sa.Column("hour", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("flavor", KEY, nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("capacity", sa.Double(), nullable=False),
        sa.Column("free", sa.Double(), nullable=False),
        sa.Column("fragmented", sa.Double(), nullable=False),
        sa.Column("stranded", sa.Double(), nullable=False),
        sa.Column("inside", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("hour", "flavor", name=op.f("usage_fleet_pkey")),
        comment="GPU-seconds of nodes: capacity, free, and unusable for any gang; seconds that were observed",
    )
    op.create_table(
        "usage_cluster",
        sa.Column("hour", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("physical", sa.BigInteger(), nullable=False),
        sa.Column("unallocated", sa.BigInteger(), nullable=False),
        sa.Column("unmanaged", sa.BigInteger(), nullable=False),
        sa.Column("unhealthy", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("hour", name=op.f("usage_cluster_pkey")),
        comment="all GPUs of the cluster by hour, in units of the usage ledger; gangs hold the rest",
    )


def _processes() -> None:
    """The processes that use the database, and the revision that their release must know."""
    op.create_table(
        "replicas",
        sa.Column("name", KEY, nullable=False),
        sa.Column("release", sa.Text(), nullable=False),
        sa.Column("revision", sa.Text(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("replicas_pkey")),
        comment="processes that use the database; revision is the newest one that their release knows",
    )
    op.create_table(
        "process_runs",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("release", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=True),
        sa.Column("began_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("how", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("process_runs_pkey")),
        comment="the newest runs of processes and how they ended; epoch of a process that leads",
    )
    op.create_table(
        "schema_requirement",
        sa.Column("singleton", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("revision", sa.Text(), nullable=False),
        sa.CheckConstraint("singleton", name=op.f("schema_requirement_singleton_check")),
        sa.PrimaryKeyConstraint("singleton", name=op.f("schema_requirement_pkey")),
        comment="the last post revision, or the first revision; a release that does not know it cannot use the schema",
    )
    op.execute("INSERT INTO schema_requirement (revision) VALUES ('0100_pre')")
