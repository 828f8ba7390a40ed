"""Small runs that several tests look at."""

import contextlib
import json
import multiprocessing
import os
import socket
import sys
from dataclasses import replace

import numpy as np
import torch
from safetensors.torch import load_file

from tests.helpers import ListPairs
from transformer_annotated.batching import Batches
from transformer_annotated.distributed import Worker
from transformer_annotated.model import Transformer, TransformerConfig
from transformer_annotated.optimizer import NoamOptimizer
from transformer_annotated.training import TrainingConfig, train
from transformer_annotated.workshop.checkpoints import (
    list_checkpoints,
    load_checkpoint,
)


def reversals(count, seed):
    """Short sentences, and the same backwards."""
    draw = np.random.default_rng(seed)
    rows = [draw.integers(4, 20, draw.integers(2, 7)) for _ in range(count)]
    return ListPairs(rows, [ids[::-1] for ids in rows])


PAIRS, VALID = reversals(60, seed=0), reversals(10, seed=1)
CONFIG = TrainingConfig(
    steps=12,
    batch_tokens=40,
    warmup=10,
    accumulate=2,
    log_every=3,
    validate_every=4,
    checkpoint_every=2,
    keep=2,
)


def tiny(seed=1, **changes):
    """A model that is small enough for many runs."""
    torch.manual_seed(seed)
    sizes = {"layers": 1, "d_model": 16, "d_ff": 16, "heads": 2, **changes}
    return Transformer(TransformerConfig(20, **sizes))


def noam(model, **changes):
    """The optimizer of a model."""
    return NoamOptimizer(model.parameters(), model.config.d_model, **changes)


def go(folder, resume=False, model=None, valid=VALID, **changes):
    """Train the tiny model in a folder, silently."""
    return train(
        tiny() if model is None else model,
        PAIRS,
        valid,
        replace(CONFIG, **changes),
        folder,
        resume,
        progress_bar=False,
    )


def a_batch(parts=1, pairs=PAIRS, number=0, max_tokens=60):
    """An update's batch, in parts."""
    return Batches(pairs, max_tokens, accumulate=parts)[number]


def weights_of(folder, step=None):
    """What the last checkpoint of a run holds, or that of a step."""
    there = list_checkpoints(folder / "checkpoints")
    found = there[-1] if step is None else there[0].with_name(f"step-{step}")
    return load_file(found / "model.safetensors")


def rows_of(folder):
    """The metrics of a run, without what no two runs share."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line, parse_constant=_no_constant) for line in lines]
    assert all(row.pop("seconds") > 0 for row in rows)
    return rows


def _no_constant(name):
    raise AssertionError(f"{name} is no JSON")


def same(a, b):
    """Whether two sets of tensors agree to the last bit."""
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def assert_same_run(folder, other, step=None):
    """Weights and metrics of two runs agree, to the last bit."""
    assert same(weights_of(folder, step), weights_of(other, step))
    assert rows_of(folder) == rows_of(other)


class Deaf(Worker):
    """One of two workers, who never hears of the other."""

    def all_reduce(self, numbers):
        """What it has itself."""
        return numbers

    def any_rank(self, flag):
        """What it knows itself."""
        return flag


# Other processes, forked from one that is warm.
NURSERY = multiprocessing.get_context("forkserver")
NURSERY.set_forkserver_preload(
    [
        "torch",
        "torch._dynamo",
        "torchtext.vocab",
        "transformer_annotated.workshop.cli",
        "tests.test_training",
    ]
)


def child(work, *args):
    """Start a process that does some work, and return it."""
    process = NURSERY.Process(target=work, args=args)
    process.start()
    return process


def at_once(work, *args):
    """Do some work in another process; its exit code."""
    process = child(work, *args)
    process.join()
    code = process.exitcode
    process.close()
    return code


def command(said, *words, **setting):
    """The command line in a process of its own; what it says is in a file."""
    return child(_command, said, [str(word) for word in words], setting)


def _command(said, words, setting):
    torch.set_num_threads(1)
    multiprocessing.set_start_method("fork", force=True)  # as by default
    os.environ.update(setting)
    sys.argv = ["transformer-annotated", *words]
    with (
        open(said, "a") as file,
        contextlib.redirect_stdout(file),
        contextlib.redirect_stderr(file),
    ):
        from transformer_annotated.workshop.cli import main

        main()


def two_ranks(said, *words):
    """Two processes that train together, as torchrun starts them."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    place |= {"WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo"}
    return [
        command(said, *words, RANK=rank, LOCAL_RANK=rank, **place)
        for rank in "01"
    ]


def assert_all_whole(folder):
    """Every checkpoint that is listed can be read, to the end."""
    for path in list_checkpoints(folder / "checkpoints"):
        model = tiny(seed=3)
        progress = load_checkpoint(path, model, noam(model), {})
        assert path.name == f"step-{progress['step']}"
