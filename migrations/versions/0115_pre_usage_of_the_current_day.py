"""Sums of the past hours of the current day, and sums over all users and labels, for reports."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0115_pre"
down_revision = "0114_pre"
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
    op.add_column("usage_summed", sa.Column("until", sa.BigInteger(), nullable=False))
    op.create_table(
        "usage_queue_days",
        sa.Column("day", sa.BigInteger(), autoincrement=False, nullable=False),
        *(sa.Column(name, KEY, nullable=False) for name in NAMES),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in UNITS),
        sa.Column("cost", sa.Double(), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in COUNTS),
        sa.PrimaryKeyConstraint("day", *NAMES, name="usage_queue_days_pkey"),
        sa.ForeignKeyConstraint(
            ["day"], ["usage_summed.day"], name="usage_queue_days_day_fkey", ondelete="CASCADE"
        ),
        comment="sums of usage_days over all users and labels",
    )
    for table, comment in (
        (
            "usage_summed",
            "days whose sums are in usage_days and usage_queues, of the hours before until; a trigger deletes a day of which such an hour changes",
        ),
        (
            "usage_days",
            "sums of usage_hours by day, in units; workloads that have rows of these hours and of one subject only are counted once",
        ),
        (
            "usage_spanning",
            "rows of a day whose workloads usage_days does not count: they have other hours or subjects, or can get some",
        ),
    ):
        op.create_table_comment(table, comment)
    for name, body in (
        ("hours_inserted", CHANGED + OF_OTHER_HOURS_WITHOUT_METER),
        ("hours_updated", CHANGED),
        ("hours_deleted", CHANGED),
        ("meters_inserted", OF_OTHER_HOURS),
    ):
        op.execute(
            f"CREATE OR REPLACE FUNCTION usage_{name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            f" IF EXISTS (SELECT FROM usage_summed) THEN {body} END IF; RETURN NULL; END $$"
        )


CHANGED = """
    DELETE FROM usage_summed u USING (SELECT DISTINCT hour FROM changed) c
    WHERE u.day = c.hour - c.hour % 86400 AND u.until > c.hour;
"""
# A workload that usage_days counts, because it had ended, has begun again.
_OF_OTHER_HOURS = """
    DELETE FROM usage_summed u USING (
        SELECT h.hour, h.subject FROM {changed}
        JOIN usage_subjects s ON s.uid = c.uid JOIN usage_hours h ON h.subject = s.id
    ) c
    WHERE u.day = c.hour - c.hour % 86400 AND u.until > c.hour
        AND NOT EXISTS (SELECT FROM usage_spanning x WHERE x.day = u.day AND x.subject = c.subject);
"""
OF_OTHER_HOURS = _OF_OTHER_HOURS.format(changed="changed c")
OF_OTHER_HOURS_WITHOUT_METER = _OF_OTHER_HOURS.format(
    changed="""(
            SELECT DISTINCT s.uid FROM changed n JOIN usage_subjects s ON s.id = n.subject
            WHERE NOT EXISTS (SELECT FROM usage_meters m WHERE m.uid = s.uid)
        ) c"""
)
