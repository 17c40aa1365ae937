"""nbgrader's ClearSolutions with one rule more: a solution at module level leaves no ``raise`` behind.

Inside a function the stub raises when it is called. At module level, below a table that the learner fills in, it would
stop the notebook at a cell that nobody has called.
"""

from __future__ import annotations

from nbformat import NotebookNode
from nbgrader.preprocessors import ClearSolutions

__all__ = ["StripSolutions"]


class StripSolutions(ClearSolutions):
    """Strip solutions; choose the stub by the indentation of the region."""

    def _replace_solution_region(self, cell: NotebookNode, language: str) -> bool:
        begin = next((line for line in cell.source.split("\n") if self.begin_solution_delimeter in line), None)
        if begin is None or cell.cell_type != "code" or begin[:1].isspace():
            return super()._replace_solution_region(cell, language)
        stub = self.code_stub
        self.code_stub = {**stub, language: "# YOUR CODE HERE: change the cell above this line"}
        try:
            return super()._replace_solution_region(cell, language)
        finally:
            self.code_stub = stub
