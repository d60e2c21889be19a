"""The records of shadow mode."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0101_pre"
down_revision = "0100_pre"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "shadow_gangs",
        sa.Column("uid", sa.Text(collation="C"), nullable=False),
        sa.Column("last_at", sa.Double(), nullable=False),
        sa.Column("startable", sa.Double(), nullable=False),
        sa.Column("unbound", sa.Double(), nullable=False),
        sa.Column("record", JSONB(), nullable=False),
        sa.PrimaryKeyConstraint("uid", name=op.f("shadow_gangs_pkey")),
        comment="shadow mode: gangs that waited, or whose pods had no node; GPU-seconds by which reports sort",
    )
    op.create_index("shadow_gangs_last_at_idx", "shadow_gangs", ["last_at"])
    op.create_table(
        "shadow_hours",
        sa.Column("hour", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("sums", JSONB(), nullable=False),
        sa.PrimaryKeyConstraint("hour", name=op.f("shadow_hours_pkey")),
        comment="shadow mode: sums over the moments of an hour",
    )
    op.create_table(
        "shadow_progress",
        sa.Column("singleton", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("at", sa.Double(), nullable=True),
        sa.Column("last", JSONB(), nullable=True),
        sa.CheckConstraint("singleton", name=op.f("shadow_progress_singleton_check")),
        sa.PrimaryKeyConstraint("singleton", name=op.f("shadow_progress_pkey")),
        comment="shadow mode: the last moment; null = none",
    )
    op.execute("INSERT INTO shadow_progress DEFAULT VALUES")
