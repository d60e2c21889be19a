"""Plans that the verifier refused, for the analysis of the defect."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0014_pre"
down_revision = "0013_pre"
branch_labels = None
depends_on = None


def upgrade() -> None:
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
