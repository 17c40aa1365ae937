"""The instructors' side: sources to notebooks, references, the judge, nbgrader's executor, the answer bank.

Never ships to students, and ``course_utils`` never imports it.
"""

import os
import sys

# nbgrader runs the program `alembic` by name; find it also where the environment is not activated.
_bin = os.path.dirname(sys.executable)
if _bin not in os.environ.get("PATH", "").split(os.pathsep):
    os.environ["PATH"] = os.pathsep.join([_bin, os.environ.get("PATH", os.defpath)])

# jsonschema, without which no notebook is read, builds a grammar of international web addresses while it is imported: more
# than a CPU second in every process of the grader. No schema of a notebook asks for it, and jsonschema does without it.
sys.modules.setdefault("rfc3987_syntax", None)
