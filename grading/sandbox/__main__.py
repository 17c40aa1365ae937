"""``python -m grading.sandbox``: which sandbox this machine offers for grading, and what it leaves open."""

from __future__ import annotations

import sys
import textwrap

from grading.sandbox.offer import choose, offers


def main() -> int:
    chosen = choose()
    for offer in offers():
        state = "used" if offer is chosen else "not usable" if offer.lacking else "usable"
        print(f"{offer.kind}: {state}")
        if offer.lacking:
            _line(offer.lacking)
    print()
    if chosen.open:
        print(f"With {chosen.kind} a student's code is not kept from everything:")
        for hole in chosen.open:
            _line(f"- {hole}")
    else:
        print("A student's code sees no solutions, no gradebook, no home and no network, and leaves nothing behind.")
    return 0 if chosen.kind == "bubblewrap" else 1


def _line(text: str) -> None:
    print(textwrap.fill(text, 110, initial_indent="    ", subsequent_indent="      "))


if __name__ == "__main__":
    sys.exit(main())
