"""The GPU utilization of each workload over time."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0108_pre"
down_revision = "0107_pre"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "usage_curves",
        sa.Column("uid", sa.Text(collation="C"), nullable=False),
        sa.Column("begins", sa.Double(), nullable=False),
        sa.Column("spacing", sa.Double(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("uid", name=op.f("usage_curves_pkey")),
        comment="GPU-seconds of each workload over time, at most 96 points of spacing seconds: held, measured and used, as 4-byte floats",
        postgresql_with={"fillfactor": 70},
    )
