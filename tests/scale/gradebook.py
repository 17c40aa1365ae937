"""All that a gradebook holds, as plain data that does not depend on the order in which it was written."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

__all__ = ["contents"]

_DRAWN = re.compile(r"[0-9a-f]{32}")  # an id of nbgrader's, drawn by chance


def contents(path: Path) -> dict[str, Counter]:
    """The rows of every table. In place of an id drawn by chance stands the row that it leads to, without its own id."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        database.row_factory = sqlite3.Row
        names = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows = {name: list(database.execute(f'SELECT * FROM "{name}"')) for name in names}
        leads = {
            name: {
                row["from"]: (row["table"], row["to"]) for row in database.execute(f'PRAGMA foreign_key_list("{name}")')
            }
            for name in names
        }
    found = {(name, column): {} for name in names for _, (name, column) in _pairs(leads)}
    for table, column in found:
        found[table, column] = {row[column]: row for row in rows[table]}
    known: dict[tuple[str, str], tuple] = {}

    def plain(table: str, row: sqlite3.Row) -> tuple:
        return tuple((column, value(table, column, row[column])) for column in row.keys())  # noqa: SIM118

    def value(table: str, column: str, value: object) -> object:
        if column in leads[table] and value is not None:
            to = leads[table][column]
            if (to[0], value) not in known:
                known[to[0], value] = plain(to[0], found[to][value])
            return known[to[0], value]
        return "drawn" if isinstance(value, str) and _DRAWN.fullmatch(value) else value

    return {table: Counter(plain(table, row) for row in rows[table]) for table in names}


def _pairs(leads: dict[str, dict[str, tuple[str, str]]]) -> list[tuple[str, tuple[str, str]]]:
    return [(table, to) for table, columns in leads.items() for to in columns.values()]
