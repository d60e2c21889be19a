"""Past use of LocalQueues, ClusterQueues and users, for fair sharing."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006_pre"
down_revision = "0005_pre"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "past_use",
        sa.Column("scope", sa.Text(collation="C"), nullable=False),
        sa.Column("key", sa.Text(collation="C"), nullable=False),
        sa.Column("resource", sa.Text(collation="C"), nullable=False),
        sa.Column("value", sa.Double(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("scope", "key", "resource", name="past_use_pkey"),
        comment="decayed use at a time; scope is LocalQueue, ClusterQueue or User",
    )
