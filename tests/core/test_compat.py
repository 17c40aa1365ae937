"""The fallbacks for older versions, tried on this one."""

from __future__ import annotations

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from course_utils import compat


@pytest.fixture(params=["asked", "listed"])
def hooks(request):
    """(pop, push) of the installed version's own way, and of the way for a version that cannot name the pair."""
    if request.param == "asked":
        if not hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks"):
            pytest.skip("this version cannot say which hooks are on")
        yield compat._pop_asked, torch._C._autograd._push_saved_tensors_default_hooks
        return
    listed = compat.pop_saved_tensors_hooks is compat._pop_listed  # by this version's own need: once is enough
    end = (lambda: None) if listed else compat.remember_saved_tensors_hooks()
    yield compat._pop_listed, compat._push_listed
    end()


def saved_by(calls: list[str]) -> list[str]:
    """The names of the hooks that saw a tensor being saved."""
    calls.clear()
    torch.ones(2, requires_grad=True).square()
    return list(calls)


def test_hooks_that_were_set_aside_are_lost_or_come_back_in_another_order(hooks):
    pop, push = hooks
    calls: list[str] = []

    def named(name: str) -> tuple:
        return (lambda t: calls.append(name) or t), (lambda t: t)

    outer, inner = named("outer"), named("inner")
    with saved_tensors_hooks(*outer), saved_tensors_hooks(*inner):
        assert saved_by(calls) == ["inner"]
        taken = [pop(), pop(), pop()]
        assert taken == [inner, outer, None]
        assert saved_by(calls) == []
        push(*outer)
        push(*inner)
        assert saved_by(calls) == ["inner"]
    assert saved_by(calls) == []
    assert pop() is None


def test_an_error_inside_the_block_leaves_the_hooks_on_the_list(hooks):
    pop, _ = hooks
    with pytest.raises(ZeroDivisionError), saved_tensors_hooks(lambda t: t, lambda t: t):
        raise ZeroDivisionError
    assert pop() is None


def test_the_default_device_is_unknown_after_it_was_set_back(monkeypatch):
    def fails():
        raise AttributeError("'NoneType' object has no attribute 'device'")

    assert compat.default_device() == torch.device("cpu")
    with torch.device("meta"):
        monkeypatch.setattr(torch, "get_default_device", fails)  # as PyTorch 2.9 does
        assert compat.default_device() == torch.device("meta")
    assert compat.default_device() == torch.device("cpu")
