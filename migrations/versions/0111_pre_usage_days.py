"""Sums of complete days of the usage ledger."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0111_pre"
down_revision = "0110_pre"
branch_labels = None
depends_on = None

KEY = sa.Text(collation="C")
NAMES = ("namespace", "queue", "cluster_queue", "cohort", "user")
UNITS = ("waiting", "allocated", "used", "idle", "stuck", "unknown", "waited", "unpriced")
COUNTS = ("workloads", "by_flavor", "by_price")


def upgrade() -> None:
    op.create_table(
        "usage_summed",
        sa.Column("day", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("day", name="usage_summed_pkey"),
        comment="days whose sums are in usage_days; a trigger deletes a day of which an hour changes",
    )
    op.create_table(
        "usage_days",
        sa.Column("day", sa.BigInteger(), nullable=False),
        *(sa.Column(name, KEY, nullable=False) for name in NAMES),
        sa.Column("labels", postgresql.JSONB(), nullable=False),
        *(sa.Column(name, KEY, nullable=False) for name in ("flavor", "price")),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in UNITS),
        sa.Column("cost", sa.Double(), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in COUNTS),
        sa.ForeignKeyConstraint(
            ["day"], ["usage_summed.day"], name="usage_days_day_fkey", ondelete="CASCADE"
        ),
        comment="sums of usage_hours by day, in units; workloads that have rows of this day and of one subject only are counted once",
    )
    op.create_index("usage_days_day_idx", "usage_days", ["day"])
    op.create_table(
        "usage_spanning",
        sa.Column("day", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("subject", sa.Uuid(), nullable=False),
        sa.Column("flavor", KEY, nullable=False),
        sa.Column("price", KEY, nullable=False),
        sa.Column("uid", KEY, nullable=False),
        *(sa.Column(name, KEY, nullable=False) for name in NAMES),
        sa.Column("labels", postgresql.JSONB(), nullable=False),
        sa.PrimaryKeyConstraint("day", "subject", "flavor", "price", name="usage_spanning_pkey"),
        sa.ForeignKeyConstraint(
            ["day"], ["usage_summed.day"], name="usage_spanning_day_fkey", ondelete="CASCADE"
        ),
        comment="rows of a day whose workloads usage_days does not count: they have other days or subjects, or can get some",
    )
    for name, events, body in (
        ("hours_inserted", "INSERT", CHANGED + OF_OTHER_DAYS_WITHOUT_METER),
        ("hours_updated", "UPDATE", CHANGED),
        ("hours_deleted", "DELETE", CHANGED),
    ):
        _trigger(f"usage_{name}", events, "usage_hours", body)
    _trigger("usage_meters_inserted", "INSERT", "usage_meters", OF_OTHER_DAYS)


CHANGED = """
    DELETE FROM usage_summed WHERE day IN (SELECT hour - hour % 86400 FROM changed);
"""
# A workload that usage_days counts, because it had ended, has begun again.
_OF_OTHER_DAYS = """
    DELETE FROM usage_summed WHERE day IN (
        SELECT h.hour - h.hour % 86400 FROM {changed}
        JOIN usage_subjects s ON s.uid = c.uid JOIN usage_hours h ON h.subject = s.id
        WHERE NOT EXISTS (
            SELECT FROM usage_spanning x WHERE x.day = h.hour - h.hour % 86400 AND x.subject = h.subject
        )
    );
"""
OF_OTHER_DAYS = _OF_OTHER_DAYS.format(changed="changed c")
OF_OTHER_DAYS_WITHOUT_METER = _OF_OTHER_DAYS.format(
    changed="""(
            SELECT DISTINCT s.uid FROM changed n JOIN usage_subjects s ON s.id = n.subject
            WHERE NOT EXISTS (SELECT FROM usage_meters m WHERE m.uid = s.uid)
        ) c"""
)


def _trigger(name: str, event: str, table: str, body: str) -> None:
    rows = "OLD" if event == "DELETE" else "NEW"
    op.execute(
        f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF EXISTS (SELECT FROM usage_summed) THEN {body} END IF; RETURN NULL; END $$"
    )
    op.execute(
        f"CREATE TRIGGER {name} AFTER {event} ON {table} REFERENCING {rows} TABLE AS changed"
        f" FOR EACH STATEMENT EXECUTE FUNCTION {name}()"
    )
