"""The input and the decision of each planning cycle that changed something."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0011_pre"
down_revision = "0010_pre"
branch_labels = None
depends_on = None


def upgrade() -> None:
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
        sa.PrimaryKeyConstraint("id", name="decisions_pkey"),
        comment="planning cycles that changed something; kept for a week",
    )
