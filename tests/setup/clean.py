"""The environment in which the set-up's tests start their programs."""

import os

# What an outer `make test` hands down, and settings of the machine that would change what the set-up does.
FOREIGN = ("MAKE", "MFLAGS", "GNUMAKEFLAGS", "PIP_", "TORCH", "PYTHON", "COURSE_PYTHON")


def env(**settings: str) -> dict[str, str]:
    """This process's environment without foreign settings, with no package index, and with `settings`."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(FOREIGN)}
    return {**kept, "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", **settings}
