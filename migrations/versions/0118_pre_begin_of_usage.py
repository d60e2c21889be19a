"""When the usage ledger began: before, gangs of a cluster that was taken over held GPUs of which no ledger was kept."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0118_pre"
down_revision = "0117_pre"
branch_labels = None
depends_on = None


def upgrade() -> None:
    comment = "the time in which the cluster was accounted for; null = none"
    op.create_table_comment("usage_progress", comment)
    op.add_column("usage_progress", sa.Column("begins", sa.Double(), nullable=True))
    op.execute(
        "UPDATE usage_progress SET begins = (SELECT min(hour) FROM usage_fleet) WHERE until IS NOT NULL"
    )
