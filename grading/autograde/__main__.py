"""The command: ``python -m grading.autograde``."""

import sys

from grading.autograde.command import main

if __name__ == "__main__":
    sys.exit(main())
