"""How many graphs ``torch.compile`` makes of a function. Nothing is compiled: the graphs are counted and run as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["GraphCounter", "count_graphs"]


class GraphCounter:
    """A back end for ``torch.compile`` that keeps every graph that it gets, and runs it unchanged.

    >>> counter = GraphCounter()
    >>> fast = torch.compile(function, backend=counter)

    Counting takes well under a second, where Inductor would compile for many. A back end that returns the graph's own
    ``forward`` is documented in PyTorch's manual, "Custom Backends".

    Attributes
    ----------
    graphs : list of torch.fx.GraphModule
        In the order in which they were made. More than one: a break, or a recompilation for other inputs.
    """

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(self, graph: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        self.graphs.append(graph)
        return graph.forward

    @property
    def operations(self) -> list[int]:
        """Per graph, the number of calls in it."""
        calls = ("call_function", "call_method", "call_module")
        return [sum(node.op in calls for node in graph.graph.nodes) for graph in self.graphs]


def count_graphs(function: Callable[..., Any], *inputs: tuple[Any, ...], dynamic: bool | None = None) -> GraphCounter:
    """Call ``function(*args)`` through ``torch.compile`` for each ``args`` of ``inputs``, and count.

    Parameters
    ----------
    function : callable
        A function or a module.
    *inputs : tuples
        The arguments of one call each.
    dynamic : bool, optional
        As for ``torch.compile``: None learns from the second size, False makes a graph per size, True one for all.
    """
    counter = GraphCounter()
    torch._dynamo.reset()  # graphs made earlier would be used again, and not counted
    try:
        compiled = torch.compile(function, backend=counter, dynamic=dynamic)
        for args in inputs:
            compiled(*args)
    finally:
        torch._dynamo.reset()
    return counter
