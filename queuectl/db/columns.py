"""The columns tables are made of (:mod:`queuectl.db.tables`, :mod:`queuectl.db.usagetables`), and the metadata of all.

Times are unix seconds (``to_timestamp(queued_at)`` in SQL) so that values return exactly as they went. Names sort by code
point (``COLLATE "C"``), so that order is the same on every server.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    MetaData,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

metadata: Final = MetaData(
    naming_convention={
        "ix": "%(table_name)s_%(column_0_N_name)s_idx",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "ck": "%(table_name)s_%(constraint_name)s_check",
        "pk": "%(table_name)s_pkey",
    }
)


def key(name: str, *, primary: bool = False) -> Column[str]:
    """A name, sorted by code point."""
    return Column(name, Text(collation="C"), primary_key=primary, nullable=False)


def words(name: str) -> Column[str]:
    """Text that is never a sort key."""
    return Column(name, Text, nullable=False)


def integer(name: str) -> Column[int]:
    """A whole number of 64 bits."""
    return Column(name, BigInteger, nullable=False)


def seconds(name: str, *, nullable: bool = False) -> Column[float]:
    """A time in unix seconds, or a duration."""
    return Column(name, Double, nullable=nullable)


def json(name: str, *, nullable: bool = False) -> Column[Any]:
    """A document; Python's None is SQL's NULL."""
    return Column(name, JSONB(none_as_null=True), nullable=nullable)


def amount(name: str) -> Column[float]:
    """An amount: GPU-seconds or money."""
    return Column(name, Double, nullable=False)


def single_row(name: str, *columns: Column[Any], comment: str) -> Table:
    """A table with exactly one row, which its migration inserts."""
    return Table(
        name,
        metadata,
        Column("singleton", Boolean, primary_key=True, server_default=text("true")),
        *columns,
        CheckConstraint("singleton", name="singleton"),
        comment=comment,
    )
