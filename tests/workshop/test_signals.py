"""Being told to stop, and being killed."""

import multiprocessing
import os
import shutil
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.runs import (
    CONFIG,
    PAIRS,
    assert_all_whole,
    assert_same_run,
    at_once,
    go,
    rows_of,
)
from transformer_annotated import training
from transformer_annotated.training import TrainState, training_batches
from transformer_annotated.workshop import checkpoints
from transformer_annotated.workshop.signals import stop_on_signals

pytestmark = pytest.mark.usefixtures("one_thread")


# --- signals


def test_signals_are_noted_inside_and_nowhere_else():
    """The first sets a flag; handlers come back afterwards."""
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    for number in (signal.SIGINT, signal.SIGTERM):
        with stop_on_signals() as asked:
            assert not asked.is_set()
            signal.raise_signal(number)
            assert asked.is_set() and asked.number == number
            signal.raise_signal(signal.SIGTERM)  # patience
            assert asked.number == number
    after = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    assert after == before


def test_who_insists_is_heard():
    """A second Ctrl-C interrupts at once, and handlers come back."""
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), stop_on_signals():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == before


def test_a_run_in_a_thread(tmp_path, uninterrupted):
    """Only the main thread hears signals; others train all the same."""
    thread = threading.Thread(target=go, args=(tmp_path,))
    thread.start()
    thread.join()
    assert_same_run(tmp_path, uninterrupted)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_after_the_update(
    tmp_path, uninterrupted, monkeypatch, number
):
    """With a checkpoint off the beat, and nothing lost."""
    real = training.train_step

    def hit(learner, optimizer, *rest):
        if optimizer.steps == 4:
            signal.raise_signal(number)
        return real(learner, optimizer, *rest)

    monkeypatch.setattr(training, "train_step", hit)
    stopped = go(tmp_path)
    assert (stopped.step, stopped.stopped_by) == (5, number)
    assert (tmp_path / "checkpoints/step-5").exists()
    monkeypatch.undo()
    assert go(tmp_path, resume=True).stopped_by == 0
    assert_same_run(tmp_path, uninterrupted)


def test_processes_that_prepare_batches_leave_signals_alone(uninterrupted):
    """Whoever stops a job tells all of its processes."""
    config, progress = replace(CONFIG, workers=1), TrainState()
    batches = training_batches(PAIRS, config, progress)
    next(batches)
    [helper] = multiprocessing.active_children()
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(helper.pid, number)
    for _ in range(3):
        next(batches)
    assert helper.is_alive() and progress.batch == 4
    batches.close()


# --- accidents; in other processes, forked from one that is warm

LONG = {"steps": 16, "log_every": 1, "checkpoint_every": 1, "validate_every": 3}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The same run, undisturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    go(folder, **LONG)
    return folder


def suicidal(folder, moment):
    """Go on with a run, but die at the n-th thing it does to its folder.

    Things are what Python reports before it does them (opening, making,
    renaming and removing), and writing files halfway through.
    """
    torch.set_num_threads(1)
    count = 0

    def tick(name):
        nonlocal count
        count += 1
        if count == moment:
            (folder.parent / f"died-{moment}").write_text(name)
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(event, args):
        if event in ("os.remove", "os.rmdir") or (
            event in ("open", "os.mkdir", "os.rename")
            and str(folder) in str(args[0])
        ):
            tick(event)

    def halving(write):
        def half(content, file, *rest):
            write(content, file, *rest)
            if count + 1 == moment:
                if not isinstance(file, str | Path):
                    file.flush()
                    file = file.name
                os.truncate(file, os.path.getsize(file) // 2)
            tick(f"half of {write.__name__}")

        return half

    real_sync = os.fsync

    def sync(handle):
        tick("fsync")
        real_sync(handle)

    os.fsync = sync
    checkpoints.save_file = halving(checkpoints.save_file)
    torch.save = halving(torch.save)
    sys.addaudithook(hook)
    go(folder, resume=True, **{**LONG, "steps": 6})
    (folder.parent / "moments").write_text(str(count))


def test_kill_while_a_checkpoint_is_written(tmp_path, undisturbed):
    """At each thing that saving and pruning do, one after the other."""
    base = tmp_path / "base" / "run"
    go(base, **{**LONG, "steps": 4})
    counted = tmp_path / "count" / "run"
    shutil.copytree(base, counted)
    assert at_once(suicidal, counted, 0) == 0
    moments = int((counted.parent / "moments").read_text())
    go(counted, resume=True, **{**LONG, "steps": 7})
    first = [row for row in rows_of(undisturbed) if row["step"] <= 7]
    assert rows_of(counted) == first
    died = set()
    for moment in range(1, moments + 1):
        folder = tmp_path / str(moment) / "run"
        shutil.copytree(base, folder)
        assert at_once(suicidal, folder, moment) == -signal.SIGKILL
        died.add((folder.parent / f"died-{moment}").read_text())
        assert_all_whole(folder)
        go(folder, resume=True, **{**LONG, "steps": 7})
        assert_same_run(folder, counted)
        there = sorted(os.listdir(folder / "checkpoints"))
        assert there == sorted(os.listdir(counted / "checkpoints"))
        shutil.rmtree(folder.parent)
    assert moments > 20 and died == {
        "open",
        "os.mkdir",
        "os.rename",
        "os.remove",
        "os.rmdir",
        "fsync",
        "half of save_file",
        "half of save",
    }
