"""The commands without a result, by workload: the leader reads the first one of each."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0117_pre"
down_revision = "0116_pre"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_index("commands_open_idx", "commands")
    op.create_index(
        "commands_open_idx", "commands", ["uid", "id"], postgresql_where=sa.text("outcome IS NULL")
    )
