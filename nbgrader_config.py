"""nbgrader for this course: `nbgrader generate_assignment`, `autograde`, `generate_feedback`, `export`, `validate` and
`formgrader` work from the repository's root as they stand. Why each line is here stands beside it."""

import os
import sys
import warnings

from nbgrader.converters import Autograde, GenerateAssignment, GenerateFeedback
from sqlalchemy.exc import SAWarning

c = get_config()  # noqa: F821  (defined by the config loader)

root = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, root)  # so that the preprocessors below are found
# Kernels must find course_utils wherever their notebook lies.
os.environ["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
warnings.filterwarnings("ignore", category=SAWarning)  # several lines per student, of no use to anyone

from grading.autograde.intake import IGNORED  # noqa: E402
from grading.executor import ObserveAndJudge  # noqa: E402
from grading.feedback import CardStyle, Marks  # noqa: E402
from grading.restore import RestoreCells  # noqa: E402
from grading.sandbox.links import set_links_aside  # noqa: E402
from grading.settings import stock  # noqa: E402
from grading.strip import StripSolutions  # noqa: E402

# ------------------------------------------------------------------------------ folders: one assignment per section
c.CourseDirectory.root = root
c.CourseDirectory.course_id = "pytorch-foundations"
c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "notebooks"
c.CourseDirectory.submitted_directory = "grading/submitted"
c.CourseDirectory.autograded_directory = "grading/autograded"
c.CourseDirectory.feedback_directory = "grading/feedback"
c.CourseDirectory.solution_directory = "grading/solution"
c.CourseDirectory.source_with_tests_directory = "grading/source_with_tests"
# An absolute address; the timeout lets a grader wait for another's write instead of failing.
c.CourseDirectory.db_url = "sqlite:///" + os.path.join(root, "grading", "gradebook.db") + "?timeout=60"
# Files beside a notebook are published with it: never a source, never a cache.
c.CourseDirectory.ignore = list(IGNORED)
# On a hub a folder outside of the course that everybody reaches: docs/jupyterhub.md.
c.Exchange.root = os.environ.get("COURSE_EXCHANGE") or os.path.join(root, "grading", "exchange")
os.makedirs(c.Exchange.root, exist_ok=True)  # JupyterLab's assignment list complains where it is missing

# ------------------------------------------------------------------------------ release: nbgrader strips the answers
c.GenerateAssignment.preprocessors = stock(GenerateAssignment, "preprocessors", ClearSolutions=StripSolutions)

# ------------------------------------------------------------------------------ grade: observed there, judged here
# RestoreCells: a copied, deleted, moved or edited cell costs nobody a mark.
# It does the work of three of nbgrader's steps.
c.Autograde.sanitize_preprocessors = stock(
    Autograde, "sanitize_preprocessors", DeduplicateIds=RestoreCells, OverwriteKernelspec=None, OverwriteCells=None
)
# ObserveAndJudge writes the score itself; nothing that a cell printed can change it, so there is no pattern to ignore.
c.Autograde.autograde_preprocessors = stock(
    Autograde, "autograde_preprocessors", Execute=ObserveAndJudge, IgnorePattern=None
)
c.Execute.timeout = 60  # seconds a cell computes and sleeps; what it waits for a busy processor does not count
c.Execute.iopub_timeout = 60  # 4 by default: too little while `import torch` competes with other graders
c.KernelManager.transport_encryption = "auto"  # `validate` talks over local ports: encrypted, and without a warning
c.Execute.shutdown_kernel = "immediate"  # a polite shutdown costs 1.4 s a notebook once torch is imported
c.Autograde.pre_convert_hook = set_links_aside  # before nbgrader copies what a submitted link leads to
# Where student code runs; `python -m grading.sandbox` says what this machine offers. Limits are in MiB.
c.Sandbox.kind = "auto"  # or bubblewrap, landlock, none
c.Sandbox.memory = 4096  # all processes of one kernel together
c.Sandbox.scratch = 1024  # the files that it writes

# ------------------------------------------------------------------------------ feedback
# A student's HTML must not run scripts in another person's browser: neither outputs nor, in the second line, text.
c.HTMLExporter.sanitize_html = True
c.HTMLExporter.filters = {
    "markdown2html": "grading.feedback.safe_markdown",
    "clean_html": "grading.feedback.safe_html",  # nbconvert's shows paragraphs and figures as text
}
c.GenerateFeedback.preprocessors = [*stock(GenerateFeedback, "preprocessors", GetGrades=Marks), CardStyle]
