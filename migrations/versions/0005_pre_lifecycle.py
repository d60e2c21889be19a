"""Columns of the life cycle: lost pods, notices, holds, admission gates, execution time, changed priorities; and the table of commands."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0005_pre"
down_revision = "0004_pre"
branch_labels = None
depends_on = None

COLUMNS = (
    sa.Column("requeued_at", sa.Double()),
    sa.Column("unready_since", sa.Double()),
    sa.Column("past_seconds", sa.Double(), nullable=False, server_default=sa.text("0")),
    sa.Column("stop_at", sa.Double()),
    sa.Column("evicted_for", sa.Text()),
    sa.Column("parked", JSONB()),
    sa.Column("gates", JSONB(), nullable=False, server_default=sa.text("'[]'::jsonb")),
    sa.Column("priority_set", sa.BigInteger()),
)


def upgrade() -> None:
    """Nullable columns and constant defaults need no rewrite; the old code leaves them alone."""
    for column in COLUMNS:
        op.add_column("workloads", column)
    op.create_index(
        "workloads_finished_idx",
        "workloads",
        ["finished_at"],
        postgresql_where=sa.text("finished_at IS NOT NULL"),
    )
    op.create_table(
        "commands",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("uid", sa.Text(collation="C"), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("priority", sa.BigInteger()),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(collation="C"), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("outcome", sa.Text(), comment="null until the leader has executed the command"),
        sa.PrimaryKeyConstraint("id", name="commands_pkey"),
        sa.UniqueConstraint("request_id", name="commands_request_id_key"),
        comment="commands on workloads: the API writes them, the leader executes them",
    )
    op.create_index(
        "commands_open_idx",
        "commands",
        ["id"],
        postgresql_where=sa.text("outcome IS NULL"),
    )
