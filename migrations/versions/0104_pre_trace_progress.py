"""The line of history up to which the leader has exported traces."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0104_pre"
down_revision = "0103_pre"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "trace_progress",
        sa.Column("singleton", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("line", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("singleton", name=op.f("trace_progress_singleton_check")),
        sa.PrimaryKeyConstraint("singleton", name=op.f("trace_progress_pkey")),
        comment="the id of the last line of history whose stages are exported as spans; null before the first export",
    )
    op.execute("INSERT INTO trace_progress DEFAULT VALUES")
