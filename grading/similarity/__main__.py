import sys

from grading.similarity.command import main

if __name__ == "__main__":
    sys.exit(main())
