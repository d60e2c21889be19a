"""Whether an administrator issued a command. Only an administrator can release such a hold."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016_pre"
down_revision = "0015_pre"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Earlier commands count as those of others."""
    op.add_column(
        "commands",
        sa.Column("admin", sa.Boolean(), server_default=sa.text("false"), nullable=False),
    )
