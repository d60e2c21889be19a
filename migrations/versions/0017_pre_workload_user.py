"""The user of each workload, for filters and sorting in the list of workloads."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017_pre"
down_revision = "0016_pre"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Known workloads get the user that the usage ledger has for them. A replica of the release before writes none."""
    user = sa.Column("user", sa.Text(collation="C"), server_default=sa.text("''"), nullable=False)
    op.add_column("workloads", user)
    op.execute(
        """
        UPDATE workloads w SET "user" = left(s."user", 253)
        FROM (SELECT DISTINCT ON (uid) uid, "user" FROM usage_subjects WHERE "user" <> '' ORDER BY uid, id) s
        WHERE s.uid = w.uid
        """
    )
    op.create_index("workloads_user_idx", "workloads", ["user", "namespace", "name", "uid"])
