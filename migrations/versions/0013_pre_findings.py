"""Results that the leader publishes for standby replicas and that are not in the ledger."""

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
        comment="the last GPU utilization that the leader has measured, and its estimated starts",
    )
    op.execute("INSERT INTO findings (at, uses, starts) VALUES (0, '[]', '{}')")
