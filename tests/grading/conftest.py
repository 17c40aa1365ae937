"""A course of its own for the tests that grade."""

from __future__ import annotations

import pytest
from course import Course


@pytest.fixture(scope="session")
def course(tmp_path_factory: pytest.TempPathFactory) -> Course:
    return Course(tmp_path_factory.mktemp("course"))
