"""Sums of the hours of each LocalQueue, for charts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0113_pre"
down_revision = "0112_pre"
branch_labels = None
depends_on = None

KEY = sa.Text(collation="C")
NAMES = ("namespace", "queue", "cluster_queue")
UNITS = ("allocated", "used", "unknown", "waited")


def upgrade() -> None:
    op.execute("DELETE FROM usage_summed")  # the leader adds up these days again, with both sums
    op.create_table_comment(
        "usage_summed",
        "days whose sums are in usage_days and usage_queues; a trigger deletes a day of which an hour changes",
    )
    op.create_table(
        "usage_queues",
        sa.Column("day", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("hour", sa.BigInteger(), autoincrement=False, nullable=False),
        *(sa.Column(name, KEY, nullable=False) for name in NAMES),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in UNITS),
        sa.PrimaryKeyConstraint("day", "hour", *NAMES, name="usage_queues_pkey"),
        sa.ForeignKeyConstraint(
            ["day"], ["usage_summed.day"], name="usage_queues_day_fkey", ondelete="CASCADE"
        ),
        comment="sums of usage_hours by hour and LocalQueue, in units, of the days of usage_summed",
    )
