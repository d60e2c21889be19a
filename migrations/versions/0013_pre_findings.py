"""What the leader finds out beside the ledger, for replicas that stand by."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0013_pre"
down_revision = "0012_pre"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "findings",
        sa.Column("singleton", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("uses", JSONB(), nullable=False),
        sa.Column("starts", JSONB(), nullable=False),
        sa.CheckConstraint("singleton", name=op.f("findings_singleton_check")),
        sa.PrimaryKeyConstraint("singleton", name=op.f("findings_pkey")),
        comment="what the leader saw last of GPU use, and when it expects those that wait to start",
    )
    op.execute("INSERT INTO findings (at, uses, starts) VALUES (0, '[]', '{}')")
