"""Sums of the hours of each LocalQueue with all amounts, for reports by hour."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0114_pre"
down_revision = "0113_pre"
branch_labels = None
depends_on = None

KEY = sa.Text(collation="C")
NAMES = ("namespace", "queue", "cluster_queue", "cohort", "flavor", "price")
UNITS = ("waiting", "allocated", "used", "idle", "stuck", "unknown", "waited", "unpriced")
COUNTS = ("workloads", "by_flavor", "by_price")


def upgrade() -> None:
    # A leader can be adding up a day.
    op.execute("LOCK TABLE usage_summed IN ACCESS EXCLUSIVE MODE")
    op.execute("DELETE FROM usage_summed")  # the leader adds up these days again
    op.add_column("usage_spanning", sa.Column("moved", sa.Boolean(), nullable=False))
    op.drop_table("usage_queues")
    op.create_table(
        "usage_queues",
        sa.Column("day", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("hour", sa.BigInteger(), autoincrement=False, nullable=False),
        *(sa.Column(name, KEY, nullable=False) for name in NAMES),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in UNITS),
        sa.Column("cost", sa.Double(), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in COUNTS),
        sa.PrimaryKeyConstraint("day", "hour", *NAMES, name="usage_queues_pkey"),
        sa.ForeignKeyConstraint(
            ["day"], ["usage_summed.day"], name="usage_queues_day_fkey", ondelete="CASCADE"
        ),
        comment="sums of usage_hours by hour and LocalQueue, in units; workloads of one subject only are counted once in each hour",
    )
