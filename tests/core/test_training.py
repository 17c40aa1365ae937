"""The helpers of section 5: counted images, counted graphs, checkpoints, and a trainer that resumes bit by bit."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from course_utils.budget import BudgetSpent, CountedImages
from course_utils.checkpoints import (
    ShuffledBatches,
    random_state,
    read_checkpoint,
    restore_random_state,
    write_checkpoint,
)
from course_utils.compile_counter import count_graphs
from course_utils.training import LiveCurves, Trainer, mixed_precision


# ------------------------------------------------------------------------------------------------ counted images
@pytest.fixture
def images():
    return torch.arange(5 * 3 * 2 * 2, dtype=torch.uint8).view(5, 3, 2, 2)


@pytest.mark.parametrize(
    ("index", "count"),
    [
        (2, 1),
        (-1, 1),
        (slice(1, 4), 3),
        ([0, 0, 4], 3),
        (torch.tensor([3, 1]), 2),
        (torch.tensor([True, False, True, False, False]), 2),
        (slice(None), 5),
    ],
    ids=str,
)
def test_every_way_to_read_is_counted(images, index, count):
    counted = CountedImages(images, 2)
    batch = counted[index]
    assert torch.equal(batch, images[index])
    assert (counted.images_read, counted.images_left, counted.reads) == (count, 10 - count, 1)


def test_writing_into_a_batch_leaves_the_images_alone(images):
    before, counted = images.clone(), CountedImages(images, 3)
    for index in (0, slice(0, 2), [1, 2], slice(None)):
        counted[index].zero_()
    assert torch.equal(images, before)


def test_the_budget_ends_and_says_so(images):
    counted = CountedImages(images, 1)
    counted[:3]
    with pytest.raises(BudgetSpent, match="3 images were read; 4 more are over the budget of 1 passes"):
        counted[:4]
    assert counted[3:].shape[0] == 2, "what was refused was not counted"
    with pytest.raises(BudgetSpent):
        counted[0]


def test_iterating_and_asking_for_the_shape_cost_what_they_should(images):
    counted = CountedImages(images, 1)
    assert len(counted) == 5 and counted.shape == images.shape and counted.images_read == 0
    assert len(list(counted)) == 5 and counted.images_left == 0


# ------------------------------------------------------------------------------------------------ counted graphs
def test_breaks_and_recompilations_are_counted():
    x = torch.randn(4, 3)

    def clean(x):
        return (x * 2).relu()

    def printing(x):
        y = x * 2
        print(y.shape)
        return y.relu()

    def branching(x):
        return x * 2 if x.sum() > 0 else x * 3

    assert len(count_graphs(clean, (x,)).graphs) == 1
    assert len(count_graphs(printing, (x,)).graphs) == 2
    assert len(count_graphs(branching, (x.abs(),)).graphs) == 2
    apart = torch.compiler.disable(clean)
    assert len(count_graphs(lambda x: apart(x), (x,)).graphs) == 0
    assert count_graphs(clean, (x,)).operations == [2]
    sizes = [(torch.randn(n, 3),) for n in (2, 3, 4, 5)]
    assert [len(count_graphs(clean, *sizes, dynamic=d).graphs) for d in (None, False, True)] == [2, 4, 1]


# ------------------------------------------------------------------------------------------------ checkpoints
def test_every_global_generator_goes_on_where_it_was(tmp_path):
    write_checkpoint(tmp_path / "deep" / "state.pt", {"random": random_state()})
    drawn = random.random(), np.random.rand(), torch.rand(2).tolist()
    random.seed(9), np.random.seed(9), torch.manual_seed(9)
    restore_random_state(read_checkpoint(tmp_path / "deep" / "state.pt")["random"])
    assert (random.random(), np.random.rand(), torch.rand(2).tolist()) == drawn


def test_a_save_that_fails_leaves_the_old_checkpoint(tmp_path):
    path = tmp_path / "state.pt"
    write_checkpoint(path, {"a": torch.ones(3)})
    with pytest.raises(Exception, match=r"pickle|local object"):  # the second in Python 3.13
        write_checkpoint(path, {"a": torch.zeros(100_000), "b": lambda: None})
    assert read_checkpoint(path)["a"].tolist() == [1, 1, 1]
    assert [p.name for p in tmp_path.iterdir()] == ["state.pt"]


def test_batches_hold_each_index_once_and_go_on_from_a_position():
    batches = ShuffledBatches(10, 4, seed=3)
    first = list(batches)
    assert [len(b) for b in first] == [4, 4, 2] and sorted(i for b in first for i in b) == list(range(10))
    batches.advance()
    again = ShuffledBatches(10, 4)
    again.load_state_dict(batches.state_dict())
    assert list(again) == first[1:]
    again.advance(), again.advance()
    assert (again.epoch, again.position) == (1, 0) and list(again) != first


# ------------------------------------------------------------------------------------------------ the trainer
class Noisy(Dataset):
    """Items with random numbers of all three generators, as augmentation has them."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.x = torch.from_numpy(rng.standard_normal((22, 5))).float()
        self.y = self.x[:, :3].argmax(1)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i] + 0.1 * torch.randn(5) + 0.1 * float(np.random.randn()) + random.gauss(0, 0.1), self.y[i]


class Stop(Exception):
    pass


def make_trainer(path, seed, stop_after=None, **changes):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9)
    data = Noisy()
    loader = DataLoader(data, batch_sampler=ShuffledBatches(len(data), 5, seed=1))
    seen = []

    def report(history, batch=0, batches=1):
        seen.append((len(history), batch))
        if stop_after is not None and len(seen) == stop_after:
            raise Stop

    return Trainer(model, optimizer, loader, scheduler=scheduler, path=path, report=report, **changes)


def end_state(trainer):
    state = {name: part.state_dict() for name, part in trainer._parts().items()}
    return {**state, "history": trainer.history, "next": (random.random(), np.random.rand(), torch.rand(2).tolist())}


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    return a == b


@pytest.mark.parametrize("stop_after", [1, 3, 5, 7, 12])
@pytest.mark.parametrize("amp", [True, False])
def test_a_run_stopped_anywhere_and_resumed_ends_as_the_unbroken_one(tmp_path, stop_after, amp):
    random.seed(4), np.random.seed(4)
    whole = make_trainer(tmp_path / "whole.pt", seed=4, amp=amp)
    whole.fit(3)
    expected = end_state(whole)

    random.seed(4), np.random.seed(4)
    broken = make_trainer(tmp_path / "run.pt", seed=4, stop_after=stop_after, amp=amp)
    with pytest.raises(Stop):
        broken.fit(3)
    broken.save()
    random.seed(77), np.random.seed(77)
    resumed = make_trainer(tmp_path / "run.pt", seed=78, amp=amp)
    assert resumed.resume()
    resumed.fit(3)
    assert equal(end_state(resumed), expected)


def test_saving_again_before_the_next_batch_keeps_the_random_state(tmp_path):
    first = make_trainer(tmp_path / "run.pt", seed=4)
    first.fit(1)
    first.path = None  # the file stays at epoch 1
    first.fit(2)
    second = make_trainer(tmp_path / "run.pt", seed=5)
    second.resume()
    torch.manual_seed(123)
    second.save()
    third = make_trainer(tmp_path / "run.pt", seed=6)
    third.resume()
    third.fit(2)
    assert equal(first.model.state_dict(), third.model.state_dict())


def test_there_is_nothing_to_resume_where_nothing_was_saved(tmp_path):
    assert make_trainer(tmp_path / "none.pt", 1).resume() is False
    assert make_trainer(None, 1).resume() is False


def test_a_checkpoint_is_written_after_each_epoch(tmp_path):
    trainer = make_trainer(tmp_path / "run.pt", seed=4, stop_after=8)  # in the second epoch
    with pytest.raises(Stop):
        trainer.fit(3)
    assert read_checkpoint(tmp_path / "run.pt")["batches"]["epoch"] == 1


def test_a_loader_that_cannot_say_where_it_is_is_refused(tmp_path):
    model = nn.Linear(5, 3)
    with pytest.raises(TypeError, match="ShuffledBatches"):
        Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(Noisy(), batch_size=4))


def test_the_trainer_learns_and_weighs_the_last_batch(tmp_path):
    trainer = make_trainer(None, seed=4)
    history = trainer.fit(12)
    assert history[-1]["loss"] < history[0]["loss"] - 0.05
    assert all((h["accuracy"] * 22) == pytest.approx(round(h["accuracy"] * 22)) for h in history)


def test_the_schedule_waits_for_a_skipped_step():
    trainer = make_trainer(None, seed=4)
    handle = trainer.model.register_forward_hook(lambda m, i, out: out * float("inf"))
    before = trainer.scheduler.last_epoch
    trainer.model.train()
    trainer.step(torch.randn(4, 5), torch.tensor([0, 1, 2, 0]))
    assert trainer.scheduler.last_epoch == before and trainer.scaler.get_scale() == 32768
    handle.remove()
    trainer.step(torch.randn(4, 5), torch.tensor([0, 1, 2, 0]))
    assert trainer.scheduler.last_epoch == before + 1


def test_without_a_front_end_there_is_one_line_per_epoch(capsys):
    curves = LiveCurves(2, "Loss and accuracy.", "Two curves.")
    curves([], batch=1, batches=4)
    curves([{"loss": 1.5, "accuracy": 0.25}])
    curves([{"loss": 1.5, "accuracy": 0.25}, {"loss": 1.0, "accuracy": 0.5}])
    out, err = capsys.readouterr()
    assert out.splitlines() == ["epoch 1 of 2: loss 1.500, accuracy 0.250", "epoch 2 of 2: loss 1.000, accuracy 0.500"]
    assert err == ""


def test_in_a_notebook_one_display_is_renewed(monkeypatch):
    import IPython.display

    from course_utils import training

    published = []
    monkeypatch.setattr(training, "_in_notebook", lambda: True)
    monkeypatch.setattr(IPython.display, "publish_display_data", lambda data, **how: published.append((data, how)))
    curves = LiveCurves(1, "Loss and accuracy.", "Two curves.")
    for batch in range(1, 40):
        curves([], batch=batch, batches=40)
    curves([{"loss": 1.0, "accuracy": 0.5, "validation loss": 1.2, "validation accuracy": 0.4}])
    assert len(published) == 11, "ten renewals an epoch, and its end"
    assert [how["update"] for _, how in published] == [False] + 10 * [True]
    assert len({how["transient"]["display_id"] for _, how in published}) == 1
    last = published[-1][0]["text/markdown"]
    assert "data:image/png" in last and "Two curves. epoch 1 of 1: loss 1.000" in last and "░" not in last


def test_the_cpu_gets_bfloat16_and_a_scaler_that_works():
    dtype, scaler = mixed_precision("cpu")
    assert dtype is torch.bfloat16 and scaler.is_enabled()
