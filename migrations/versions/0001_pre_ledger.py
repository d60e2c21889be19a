"""Tables of the ledger: workloads with their parts, history, configuration, and the epoch of the leader."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0001_pre"
down_revision = None
branch_labels = None
depends_on = None

KEY = sa.Text(collation="C")


def upgrade() -> None:
    _workloads()
    _history()
    _configuration()


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
        sa.Column("gpus", sa.BigInteger(), nullable=False),
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
        sa.Column("budget", sa.BigInteger(), nullable=False),
        sa.Column("excluded", JSONB(), nullable=False),
        sa.Column("reason_code", sa.Text(), nullable=False),
        sa.Column("reason_message", sa.Text(), nullable=False),
        sa.Column("reason_details", JSONB(), nullable=False),
        sa.PrimaryKeyConstraint("uid", name=op.f("workloads_pkey")),
        postgresql_with={"fillfactor": 70},
    )
    op.create_index(
        "workloads_cluster_queue_idx", "workloads", ["cluster_queue", "namespace", "name", "uid"]
    )
    op.create_index("workloads_listing_idx", "workloads", ["namespace", "name", "uid"])
    op.create_index(
        "workloads_live_idx", "workloads", ["uid"], postgresql_where=sa.text("finished_at IS NULL")
    )
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
        sa.CheckConstraint("singleton", name=op.f("leadership_singleton_check")),
        sa.PrimaryKeyConstraint("singleton", name=op.f("leadership_pkey")),
        comment="a commit must name this epoch",
    )
    op.execute("INSERT INTO configuration (revision) VALUES (0)")
    op.execute("INSERT INTO leadership (epoch, holder) VALUES (0, '')")
