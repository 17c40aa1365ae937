"""Rows of CSV that nobody's name turns into a formula."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable

__all__ = ["safe_cell", "to_csv"]

# Ids, addresses and numbers: a number with a sign is no formula, and ``@`` alone calls nothing.
_HARMLESS = re.compile(r"[\w.,@+%-]*")


def safe_cell(value: object) -> str:
    """Text that no spreadsheet takes for a formula: what begins like one gets an apostrophe before it.

    Source: https://owasp.org/www-community/attacks/CSV_Injection. Ids stay as they are, so that they still match.
    """
    text = str(value)
    begins = text.lstrip()[:1] in ("=", "+", "-", "@") or text[:1] in ("\t", "\r", "\n")
    return f"'{text}" if begins and not _HARMLESS.fullmatch(text) else text


def to_csv(rows: Iterable[Iterable[object]], delimiter: str = ",", lineterminator: str = "\n") -> str:
    """Rows as CSV with safe cells; None is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, lineterminator=lineterminator)
    for row in rows:
        writer.writerow(
            [value if value is None or isinstance(value, (int, float)) else safe_cell(value) for value in row]
        )
    return text.getvalue()
