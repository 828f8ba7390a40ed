"""Killed at random moments, again and again, a run ends as if undisturbed.

The moments are random delays after something was seen to happen: a process
that began, a line of the metrics, a checkpoint or a draft of one. ``make crash
N=100`` kills a hundred times; ``CRASH_SEED`` draws the same delays again.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.runs import command, rows_of, same, two_ranks
from tests.site import ROOT
from transformer_annotated.workshop.checkpoints import list_checkpoints

KILLS = int(os.environ.get("CRASH_KILLS", "20"))
SEED = int(os.environ.get("CRASH_SEED", random.SystemRandom().randrange(10**6)))
SETTINGS = {
    **{"layers": 1, "d_model": 16, "d_ff": 16, "heads": 2, "dropout": 0.1},
    **{"train_size": 60, "valid_size": 8, "batch_tokens": 200, "warmup": 10},
    **{"steps": 40, "log_every": 1, "validate_every": 7},
    **{"checkpoint_every": 3, "keep": 3},
}


def words(folder, **changes):
    """The command that begins a run, or goes on with it."""
    pairs = (f"{key}={value}" for key, value in (SETTINGS | changes).items())
    sets = [word for pair in pairs for word in ("--set", pair)]
    return ["train", "copy", "--out", str(folder), "--resume", *sets]


def finish(processes, said):
    """Wait for processes that nobody disturbs."""
    for process in processes:
        process.join()
        assert process.exitcode == 0, said.read_text()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A run of one process."""
    folder = tmp_path_factory.mktemp("one") / "run"
    said = folder.parent / "said"
    finish([command(said, *words(folder))], said)
    return folder


@pytest.fixture(scope="module")
def undisturbed_pair(tmp_path_factory):
    """A run of two processes."""
    folder = tmp_path_factory.mktemp("two") / "run"
    said = folder.parent / "said"
    finish(two_ranks(said, *words(folder)), said)
    return folder


@pytest.fixture
def draw(request):
    """Random delays, and the number that draws the same again."""
    print(f"CRASH_SEED={SEED} CRASH_KILLS={KILLS}")
    return random.Random(f"{SEED} {request.node.name}")


def state_of(checkpoint):
    """All that a checkpoint holds, by name, without the time it took."""
    state = torch.load(checkpoint / "training.pt", weights_only=True)
    del state["progress"]["seconds"]
    moments = {
        f"{i}.{name}": tensor
        for i, row in state["optimizer"]["adam"].pop("state").items()
        for name, tensor in row.items()
    }
    return load_file(checkpoint / "model.safetensors") | moments, state


def assert_same_end(folder, other):
    """Two folders hold the same, bit for bit, and nothing is left over."""
    assert names_in(folder) == names_in(other)
    assert rows_of(folder) == rows_of(other)
    for ours, theirs in zip(
        list_checkpoints(folder / "checkpoints"),
        list_checkpoints(other / "checkpoints"),
        strict=True,
    ):
        (tensors, rest), (known, known_rest) = state_of(ours), state_of(theirs)
        assert same(tensors, known) and rest == known_rest


def names_in(folder):
    """All that lies in a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def look(folder):
    """What can be seen of a run from outside."""
    lines, names = 0, []
    with contextlib.suppress(FileNotFoundError):
        names = sorted(os.listdir(folder / "checkpoints"))
        lines = (folder / "metrics.jsonl").read_bytes().count(b"\n")
    return lines, names


def wait_for_a_moment(draw, folder, alive, most=8):
    """Wait until a few things have happened, or all is over; and a little."""
    count = left = draw.randrange(most)
    seen = look(folder)
    while left and alive():
        time.sleep(0.0005)
        if (now := look(folder)) != seen:
            seen, left = now, left - 1
    time.sleep(draw.uniform(0, 0.02 if count else 0.3))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_killed_run_ends_as_if_undisturbed(
    tmp_path, undisturbed, draw, workers
):
    """Weights, moments, metrics; also if others prepare its batches."""
    kills, runs, said = 0, 0, tmp_path / "said"
    folder = tmp_path / "run-0"
    while kills < KILLS // 2 or folder.exists():
        process = command(said, *words(folder, workers=workers))
        if kills < KILLS // 2:
            wait_for_a_moment(draw, folder, process.is_alive)
            process.kill()
        process.join()
        assert process.exitcode in (0, -signal.SIGKILL), said.read_text()
        kills += process.exitcode == -signal.SIGKILL
        if process.exitcode == 0:
            assert_same_end(folder, undisturbed)
            runs += 1
            folder = tmp_path / f"run-{runs}"
    print(f"{kills} kills, {runs} runs")


def test_a_killed_worker_among_two(tmp_path, undisturbed_pair, draw):
    """The other ends, too, and without a traceback; together they go on."""
    kills, folder, said = 0, tmp_path / "run", tmp_path / "said"
    while True:
        pair = two_ranks(said, *words(folder))
        if kills < KILLS // 5:
            wait_for_a_moment(draw, folder, pair[0].is_alive)
            draw.choice(pair).kill()
            for process in pair:  # as torchrun does: one may not be met yet
                process.terminate()
        for process in pair:
            process.join()
        codes = {process.exitcode for process in pair}
        if codes == {0}:
            break
        expected = {0, 1, -signal.SIGKILL, -signal.SIGTERM, 143}
        assert codes <= expected, said.read_text()
        kills += -signal.SIGKILL in codes
    assert "Traceback" not in said.read_text()
    assert_same_end(folder, undisturbed_pair)
    print(f"{kills} kills")


def ranks_of(launcher):
    """The processes that torchrun has started, and that run."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == launcher and state != "Z":
                found.add(int(path.parent.name))
    return found


def torchrun(draw, folder, kills):
    """A run that torchrun starts anew; how many workers were killed."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launch += ["--nproc-per-node", "2", "--max-restarts", str(kills)]
    arguments = [word for word in words(folder) if word != "--resume"]
    said, seen = folder.with_suffix(".said"), set()
    with (
        said.open("w") as file,
        subprocess.Popen(
            [*launch, "-m", "transformer_annotated", *arguments],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=file,
            stderr=file,
            cwd=ROOT,
        ) as launcher,
    ):

        def alive():
            return launcher.poll() is None

        for _ in range(kills):
            lines, _ = look(folder)
            while alive() and look(folder)[0] == lines:  # a life that trains
                time.sleep(0.001)
            wait_for_a_moment(draw, folder, alive, most=4)
            if ranks := ranks_of(launcher.pid) - seen:
                seen |= ranks
                with contextlib.suppress(ProcessLookupError):
                    os.kill(draw.choice(sorted(ranks)), signal.SIGKILL)
    assert launcher.returncode == 0, said.read_text()
    return said.read_text().count("exitcode: -9")


def test_torchrun_goes_on_after_kills(tmp_path, undisturbed_pair, draw):
    """It starts both anew, and they go on without being told to."""
    killed = runs = 0
    while killed < max(1, KILLS // 20):  # a kill may come too late
        folder = tmp_path / f"run-{runs}"
        killed += torchrun(draw, folder, max(1, KILLS // 20) - killed)
        assert_same_end(folder, undisturbed_pair)
        runs += 1
    print(f"{killed} kills, {runs} runs")
