"""The trace of shadow mode, and its simulated report."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0103_pre"
down_revision = "0102_pre"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "shadow_trace",
        sa.Column("uid", sa.Text(collation="C"), nullable=False),
        sa.Column("gone_at", sa.Double(), nullable=True),
        sa.Column("record", JSONB(), nullable=False),
        sa.PrimaryKeyConstraint("uid", name=op.f("shadow_trace_pkey")),
        comment="shadow mode: gangs with their requests and attempts; gone_at null = in the cluster",
    )
    op.create_index("shadow_trace_gone_at_idx", "shadow_trace", ["gone_at"])
    op.create_table(
        "shadow_nodes",
        sa.Column("name", sa.Text(collation="C"), nullable=False),
        sa.Column("at", sa.Double(), autoincrement=False, nullable=False),
        sa.Column("record", JSONB(), nullable=False),
        sa.PrimaryKeyConstraint("name", "at", name=op.f("shadow_nodes_pkey")),
        comment="shadow mode: nodes from a time on",
    )
    op.create_table(
        "shadow_span",
        sa.Column("singleton", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("span", JSONB(), nullable=True),
        sa.Column("simulated", JSONB(), nullable=True),
        sa.CheckConstraint("singleton", name=op.f("shadow_span_singleton_check")),
        sa.PrimaryKeyConstraint("singleton", name=op.f("shadow_span_pkey")),
        comment="shadow mode: the time of the trace, and the last simulated report; null = none",
    )
    op.execute("INSERT INTO shadow_span DEFAULT VALUES")
