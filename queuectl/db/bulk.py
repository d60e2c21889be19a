"""Many rows in one typed statement: ``unnest`` of one array per column, so a statement is the same for any number of rows.

Thus SQLAlchemy and the server cache it. A ``VALUES`` list is compiled again for each length.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import (
    BindParameter,
    Column,
    ColumnElement,
    Delete,
    Table,
    TableValuedAlias,
    Text,
    Update,
    bindparam,
    cast,
    column,
    delete,
    func,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY, Insert, insert
from sqlalchemy.types import TypeEngine

Row = Mapping[str, Any]
TEXTS: Final[ARRAY[str]] = ARRAY(Text())


def unnest_rows(columns: Sequence[Column[Any]]) -> TableValuedAlias:
    """A row source with these columns, fed by one array parameter per column (see :func:`arrays`)."""
    parameters = []
    for source in columns:
        # One dimension, explicitly: a jsonb element that is a list can be taken for a second dimension.
        array: ARRAY[Any] = ARRAY(_element(source), dimensions=1)
        parameters.append(cast(bindparam(_parameter(source), type_=array), array))
    names = [column(source.name, _element(source)) for source in columns]
    return func.unnest(*parameters).table_valued(*names, name="given").render_derived(name="given")


def arrays(columns: Iterable[Column[Any]], rows: Sequence[Row]) -> dict[str, list[Any]]:
    """The parameters of :func:`unnest_rows`: rows turned into columns."""
    return {_parameter(source): [row[source.name] for row in rows] for source in columns}


def insert_rows(table: Table, columns: Sequence[Column[Any]]) -> Insert:
    """INSERT … SELECT FROM unnest(…)."""
    return insert(table).from_select(list(columns), select(*unnest_rows(columns).c))


def update_rows(
    table: Table, columns: Sequence[Column[Any]], *, key: Column[Any], over: Column[Any], was: str
) -> Update:
    """UPDATE … FROM unnest(…): rows found by ``key`` whose ``over`` still has the value given as array ``was``."""
    expected = Column(was, over.type)
    given = unnest_rows([*columns, expected])
    values = {target.name: given.c[target.name] for target in columns if target is not key}
    matches = (table.c[key.name] == given.c[key.name]) & (over == given.c[was])
    return update(table).where(matches).values(values)


def delete_rows(table: Table, key: Column[Any]) -> Delete:
    """DELETE … WHERE key = ANY(…), fed like :func:`unnest_rows`."""
    array: ARRAY[Any] = ARRAY(_element(key))
    return delete(table).where(
        key == func.any(cast(bindparam(_parameter(key), type_=array), array))
    )


def any_of(uids: Iterable[str] | None = None) -> ColumnElement[Any]:
    """``ANY(…)`` of these uids, or of the parameter ``uids``."""
    given: BindParameter[Any] = bindparam("uids", type_=TEXTS)
    if uids is not None:
        given = bindparam("uids", list(uids), type_=TEXTS)
    return func.any(cast(given, TEXTS))


def _parameter(source: Column[Any]) -> str:
    """Not the column's own name: in an UPDATE that one stands for SQLAlchemy's own SET parameter."""
    return f"all_{source.name}"


def _element(source: Column[Any]) -> TypeEngine[Any]:
    """The column's type without its collation, which cannot be part of an array's type."""
    return Text() if isinstance(source.type, Text) else source.type
