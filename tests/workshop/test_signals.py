"""Being told to stop, and being killed."""

import multiprocessing
import os
import random
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
    NURSERY,
    PAIRS,
    assert_all_whole,
    assert_same_run,
    at_once,
    child,
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
            assert asked.is_set()
            signal.raise_signal(signal.SIGTERM)  # patience
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
    assert go(tmp_path).step == 5
    assert (tmp_path / "checkpoints/step-5").exists()
    monkeypatch.undo()
    go(tmp_path, resume=True)
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


def go_long(folder, ready=None, **changes):
    """Go on with a run that writes as often as it can."""
    torch.set_num_threads(1)
    if ready is not None:
        ready.send(os.getpid())
    go(folder, resume=True, **{**LONG, **changes})


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The same run, undisturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    go(folder, **LONG)
    return folder


def test_kill_at_random_moments(tmp_path, undisturbed):
    """Twenty times, and every run ends as the undisturbed one."""
    draw, kills, finished = random.Random(7), 0, 0
    folder = tmp_path / "run-0"
    while kills < 20 or finished == 0:
        ours, theirs = NURSERY.Pipe(duplex=False)
        process = child(go_long, folder, theirs)
        ours.recv()
        if kills < 20:
            process.join(draw.uniform(0, 0.4))  # then out of the blue
            process.kill()
        process.join()
        assert process.exitcode in (0, -signal.SIGKILL)
        kills += process.exitcode == -signal.SIGKILL
        assert_all_whole(folder)
        if process.exitcode == 0:
            assert_same_run(folder, undisturbed)
            finished += 1
            folder = tmp_path / f"run-{finished}"
        for thing in (process, ours, theirs):
            thing.close()
    assert kills >= 20


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
