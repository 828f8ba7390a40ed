"""Several workers train as one would; run by torchrun, this file is a worker.

``torchrun tests/test_distributed.py FOLDER NUMBER KILL`` leaves in FOLDER what
the tests below look at. In their first life, worker 1 kills itself before the
given update of the second training; or with TERM, it is asked to end there.
"""

import itertools
import json
import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from tests.runs import two_ranks
from transformer_annotated import training
from transformer_annotated.batching import Batches
from transformer_annotated.distributed import (
    SINGLE,
    Worker,
    process_group,
    was_restarted,
)
from transformer_annotated.model import Transformer, TransformerConfig
from transformer_annotated.training import (
    ModelWithLoss,
    TrainingConfig,
    train,
    validate,
)
from transformer_annotated.workshop.checkpoints import (
    list_checkpoints,
    load_weights,
)
from transformer_annotated.workshop.checks import TrainingError
from transformer_annotated.workshop.files import lock_folder
from transformer_annotated.workshop.journal import read_metrics
from transformer_annotated.workshop.recipe import read_recipe

ROOT = Path(__file__).parent.parent
VOCABULARY, BATCH_TOKENS = 20, 48
CONFIG = TrainingConfig(  # twenty updates, each worker's share in two parts
    steps=20,
    batch_tokens=BATCH_TOKENS,
    accumulate=2,
    warmup=100,
    precision="float32",
    log_every=1,
    validate_every=10,
    checkpoint_every=5,
)
TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RESTART_COUNT")


class Copies:
    """Random sentences to be copied, the first as long as a whole batch."""

    def __init__(self, seed: int, count: int = 60):
        """Draw as many as asked for, always the same."""
        chance = np.random.default_rng(seed)
        lengths = chance.integers(2, 12, count)
        lengths[0] = BATCH_TOKENS - 1
        self.rows = [chance.integers(4, VOCABULARY, n) for n in lengths]
        self.source_lengths = self.target_lengths = lengths

    def source(self, i):
        """Ids of a sentence."""
        return self.rows[i]

    target = source


def new_model():
    """A small model without dropout; each worker draws its own values."""
    sizes = TransformerConfig(
        VOCABULARY, layers=1, d_model=16, d_ff=32, heads=2, dropout=0.0
    )
    return Transformer(sizes)


def learn(folder, worker, resume=False):
    """Train; gives the model, and how far it has come."""
    model = new_model()
    pairs, valid = Copies(0), Copies(1, count=7)
    return model, train(
        model, pairs, valid, CONFIG, folder, resume, worker, progress_bar=False
    )


def work(folder: Path, number: int, name: str) -> None:
    """What a worker does, from beginning to end, in either of its lives."""
    with process_group() as worker:
        if not was_restarted():
            if name == "KILL":
                answer(folder, worker)
            if name == "KILL" and worker.rank == 1:
                send_before(number, signal.SIGKILL)
            if name == "TERM" and worker.rank == 1:
                send_before(number, signal.SIGTERM)
        torch.manual_seed(0)
        _, progress = learn(folder / "shared", worker, was_restarted())
        (folder / f"left-{worker.rank}").write_text(str(progress.step))


def answer(folder: Path, worker: Worker) -> None:
    """Train once, each worker with a folder of its own, and say how it was."""
    torch.manual_seed(worker.rank)  # values of worker 1 must not matter
    model, _ = learn(folder / f"run-{worker.rank}", worker)
    numbers = torch.tensor([1.0, 10.0 * worker.rank])
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    answers = {
        "rank": worker.rank,
        "world_size": worker.world_size,
        "device": str(worker.device),
        "backend": dist.get_backend(),
        "total": worker.all_reduce(numbers).tolist(),
        "any": [worker.any_rank(worker.rank == 1), worker.any_rank(False)],
        "same": torch.equal(worker.all_reduce(flat.clone()), 2 * flat),
        "valid": validate(
            ModelWithLoss(model), Copies(2, 7), BATCH_TOKENS, worker=worker
        ),
    }
    file = folder / f"answers-{worker.rank}.json"
    file.write_text(json.dumps(answers))


def send_before(number: int, what: signal.Signals) -> None:
    """Send this process a signal, before one of the updates from now on."""
    count, train_step = itertools.count(1), training.train_step

    def disturbed(*arguments):
        if next(count) == number:
            os.kill(os.getpid(), what)
        return train_step(*arguments)

    training.train_step = disturbed


def torchrun(folder, restarts, *arguments):
    """Run this file in two processes, and wait for their end."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "--max-restarts", str(restarts)]
    clean = {k: v for k, v in os.environ.items() if k not in TORCHRUN}
    return subprocess.run(
        [*command, __file__, str(folder), *arguments],
        env={**clean, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """The folder of two workers, who were started anew once."""
    folder = tmp_path_factory.mktemp("two")
    done = torchrun(folder, 1, "13", "KILL")
    assert done.returncode == 0, done.stderr
    assert "exitcode: -9" in done.stderr  # it was killed indeed
    return folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The folder of one worker."""
    folder = tmp_path_factory.mktemp("alone")
    torch.manual_seed(0)
    learn(folder, SINGLE)
    return folder


@pytest.fixture
def answers(two):
    """What the two workers have to say."""
    return [
        json.loads((two / f"answers-{rank}.json").read_text())
        for rank in range(2)
    ]


def losses(folder):
    """The numbers of a run by update, without those of the clock."""
    rows = [r for r in read_metrics(folder) if "loss" in r]
    assert [row["step"] for row in rows] == list(range(1, 21))
    keys = ("loss", "nll", "rate", "gradient", "tokens", "epoch")
    return {key: [row[key] for row in rows] for key in keys}


def test_batches_are_hard_to_share():
    """The twenty updates include a batch of one row, for four parts."""
    rows = [len(b) for b in Batches(Copies(0), BATCH_TOKENS).rows]
    assert len(rows) < 20  # all of them are used
    assert 1 in rows
    assert max(rows) > 4


def test_workers_know_their_place(answers):
    """Two processes are rank 0 and 1 of 2, on CPUs that talk by gloo."""
    for rank, answer in enumerate(answers):
        assert (answer["rank"], answer["world_size"]) == (rank, 2)
        assert (answer["device"], answer["backend"]) == ("cpu", "gloo")


def test_totals_are_over_all_workers(answers):
    """Both get the sum of their numbers, and know of the other's flag."""
    for answer in answers:
        assert answer["total"] == [2.0, 10.0]
        assert answer["any"] == [True, False]


def test_two_workers_train_as_one(two, alone):
    """Twenty updates have the same losses, gradients and learning rates."""
    ours, expected = losses(two / "run-0"), losses(alone)
    for key, numbers in expected.items():
        assert ours[key] == pytest.approx(numbers, rel=1e-5, abs=1e-5), key
    first, last = expected["loss"][:5], expected["loss"][-5:]
    assert sum(last) < sum(first) - 1  # it learns


def test_workers_end_with_the_same_parameters(answers):
    """To the last bit, although each had drawn other initial values."""
    assert all(answer["same"] for answer in answers)


def test_only_the_first_worker_writes(two):
    """Each had a folder of its own to write to; one of them did."""
    assert len(list_checkpoints(two / "run-0" / "checkpoints")) == 4
    assert not (two / "run-1").exists()


def test_two_workers_validate_as_one(answers, two):
    """Also when a batch has one row, and the other worker has none."""
    rows = [len(b) for b in Batches(Copies(2, 7), BATCH_TOKENS).rows]
    assert 1 in rows
    model = new_model()
    load_weights(model, list_checkpoints(two / "run-0/checkpoints")[-1])
    expected = validate(ModelWithLoss(model), Copies(2, 7), BATCH_TOKENS)
    for answer in answers:
        assert answer["valid"] == pytest.approx(expected, rel=1e-5)


def test_a_killed_worker_costs_nothing(two):
    """Killed before update 13 and restarted, the run ends like the other."""
    assert losses(two / "shared") == losses(two / "run-0")
    last = [
        list_checkpoints(two / run / "checkpoints")[-1] / "model.safetensors"
        for run in ("shared", "run-0")
    ]
    assert last[0].read_bytes() == last[1].read_bytes()


def test_without_restarts_the_others_say_what_happened(tmp_path):
    """The launcher fails, and the survivor has lost contact."""
    done = torchrun(tmp_path, 0, "3", "KILL")
    assert done.returncode != 0
    assert "update 3: worker 0 of 2 lost contact" in done.stderr
    assert not list_checkpoints(tmp_path / "shared" / "checkpoints")


def test_workers_leave_together_when_asked_to(tmp_path):
    """SIGTERM to one of them: a checkpoint, and all end after this update."""
    done = torchrun(tmp_path, 0, "3", "TERM")
    assert done.returncode == 0, done.stderr
    steps = [(tmp_path / f"left-{rank}").read_text() for rank in range(2)]
    assert steps == ["3", "3"]
    (last,) = list_checkpoints(tmp_path / "shared" / "checkpoints")
    assert last.name == "step-3"


def test_a_folder_in_use_is_refused_to_all_workers(tmp_path):
    """Worker 0 says by whom; the others do not wait for it."""
    run, said = tmp_path / "run", tmp_path / "said"
    small = ("--set", "train_size=60", "--set", "valid_size=8")
    with lock_folder(run):
        pair = two_ranks(said, "train", "copy", "--out", run, *small)
        for process in pair:
            process.join()
    assert [process.exitcode for process in pair] == [2, 2], said.read_text()
    assert [
        f"worker 0: error: {run}: in use by process {os.getpid()}; wait for "
        "its end, or choose another folder",
        f"worker 1: error: {run}: refused to worker 0",
    ] == sorted(line for line in said.read_text().splitlines() if "err" in line)


def test_alone_without_torchrun(monkeypatch):
    """A process that torchrun has not started is the only one."""
    for name in TORCHRUN:
        monkeypatch.delenv(name, raising=False)
    with process_group() as worker:
        assert worker == Worker(0, 1, worker.device)
        assert worker.any_rank(True)
        assert not worker.any_rank(False)
        assert worker.all_reduce(torch.ones(2)).tolist() == [1, 1]
    assert not dist.is_initialized()
    assert not was_restarted()


@pytest.mark.parametrize(("count", "expected"), [("0", False), ("2", True)])
def test_restarted_reads_what_torchrun_counts(monkeypatch, count, expected):
    """The first start is number 0."""
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", count)
    assert was_restarted() is expected


@pytest.fixture
def gpus(monkeypatch):
    """A machine that seems to have two GPUs; what is asked of torch."""
    calls, table = [], dist.HashStore()
    monkeypatch.setattr(
        dist, "rendezvous", lambda *a, **k: iter([(table, 0, 1)])
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", calls.append)
    monkeypatch.setattr(
        dist, "init_process_group", lambda *a, **k: calls.append((a, k))
    )
    monkeypatch.setattr(
        dist, "destroy_process_group", lambda: calls.append("end")
    )
    return calls


def place(monkeypatch, rank, world_size, local):
    """Set torchrun's variables; ``None`` = leave it out."""
    for name, value in zip(TORCHRUN, (rank, world_size, local), strict=False):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, str(value))


def test_each_worker_has_a_gpu_of_its_own(monkeypatch, gpus):
    """Worker 9 of 16 is the second of its machine: cuda:1, by NCCL."""
    place(monkeypatch, 9, 16, 1)
    with process_group(timeout_minutes=3) as worker:
        assert worker == Worker(9, 16, torch.device("cuda:1"))
    device, (names, options), end = gpus
    assert device == torch.device("cuda:1")
    assert names == ("nccl",)
    assert isinstance(options.pop("store"), dist.PrefixStore)
    assert options == {
        "rank": 9,
        "world_size": 16,
        "timeout": timedelta(minutes=3),
        "device_id": device,
    }
    assert end == "end"


def test_workers_do_not_meet_those_of_an_earlier_life(monkeypatch, gpus):
    """What was left in torchrun's table before a restart is not found."""
    place(monkeypatch, 0, 2, 0)
    stores = []
    for life in ("0", "1", "1"):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", life)
        with process_group():
            stores.append(gpus[-1][1]["store"])
    stores[0].set("address", "of a dead worker")
    assert stores[0].check(["address"])
    assert not stores[1].check(["address"])
    stores[1].set("address", "of a living one")
    assert stores[2].get("address") == b"of a living one"


def test_a_worker_that_failed_does_not_wait_for_the_others(monkeypatch, gpus):
    """After an error the group is left as it is; to end it might hang."""
    place(monkeypatch, 0, 2, 0)
    with pytest.raises(TrainingError, match="enough"), process_group():
        raise TrainingError("enough")
    assert "end" not in gpus


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ((0, None, 0), "WORLD_SIZE: None, expected a number beside RANK"),
        ((0, 2, "x"), "LOCAL_RANK: 'x', expected a number"),
        ((2, 3, 2), "--nproc-per-node: more than 2, but this machine has 2"),
    ],
)
def test_what_does_not_fit_is_named(monkeypatch, gpus, variables, message):
    """Missing variables, and more processes than GPUs."""
    place(monkeypatch, *variables)
    with pytest.raises(ValueError, match=message), process_group():
        pass


SECONDS = {"base": 0.4, "big": 1.0}  # an update on the paper's machine


@pytest.mark.parametrize(
    ("name", "steps", "hours", "averaged"),
    [("base", 100_000, 11.1, 5), ("big", 300_000, 83.3, 20)],
)
def test_recipes_take_the_papers_time(name, steps, hours, averaged):
    """Steps, time at the paper's speed, and a checkpoint each ten minutes."""
    for pair in ("en-de", "en-fr"):
        recipe = read_recipe(f"wmt14-{pair}-{name}").training
        assert (recipe.steps, recipe.batch_tokens) == (steps, 25_000)
        assert recipe.steps * SECONDS[name] / 3600 == pytest.approx(hours, 0.01)
        assert recipe.checkpoint_every * SECONDS[name] == 600
        assert recipe.keep == averaged


if __name__ == "__main__":
    work(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
