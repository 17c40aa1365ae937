"""The order of the tests: by folder, quick layers first, so that a mistake shows before anything slow has begun."""

from pathlib import Path

import pytest

# A test's folder is its layer. A layer that is not named here runs after the quick ones.
QUICK = ("setup", "data", "core", "bank")  # no kernel: `make test-quick` runs these and any layer that is not named
KERNEL = (
    "notebooks",
    "book",
    "grading",
    "faults",
    "attacks",
    "scale",
    "browser",
)  # Jupyter kernels, rendered books, whole classes, browsers
TESTS = Path(__file__).parent


def layer(item: pytest.Item) -> str:
    """The folder under tests/ that holds a test."""
    return item.path.relative_to(TESTS).parts[0]


def rank(name: str) -> int:
    if name in KERNEL:
        return len(QUICK) + 1 + KERNEL.index(name)
    return QUICK.index(name) if name in QUICK else len(QUICK)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if layer(item) in KERNEL:
            item.add_marker(pytest.mark.kernel)
    items.sort(key=lambda item: rank(layer(item)))  # a stable sort: the order inside a layer stays
