"""Training: right sums, exact resumption, and nothing lost to accidents."""

import contextlib
import errno
import json
import math
import multiprocessing
import os
import pickle
import pickletools
import random
import resource
import shutil
import signal
import sys
import threading
import zipfile
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from transformer_annotated import training
from transformer_annotated.batching import Batch, Batches, collate
from transformer_annotated.loss import label_smoothed_cross_entropy
from transformer_annotated.model import (
    Transformer,
    TransformerConfig,
    shift_right,
)
from transformer_annotated.optimizer import NoamOptimizer, noam_rate
from transformer_annotated.training import (
    SINGLE,
    Journal,
    ModelWithLoss,
    TrainingConfig,
    TrainingError,
    TrainState,
    Worker,
    average_checkpoints,
    gpu_stats,
    list_checkpoints,
    load_checkpoint,
    load_weights,
    prune_checkpoints,
    read_metrics,
    save_checkpoint,
    seed_step,
    stop_on_signals,
    train,
    train_step,
    training_batches,
    validate,
)


@dataclass
class ListPairs:
    """Pairs in memory; ids are from 4 on."""

    sources: list
    targets: list

    @property
    def source_lengths(self):
        """Tokens of each source."""
        return np.array([len(ids) for ids in self.sources])

    @property
    def target_lengths(self):
        """Tokens of each target."""
        return np.array([len(ids) for ids in self.targets])

    def source(self, i):
        """Ids of a source."""
        return self.sources[i]

    def target(self, i):
        """Ids of a target."""
        return self.targets[i]


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


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """As in the processes below, so that sums are added in the same order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """A run of twelve updates at once."""
    folder = tmp_path_factory.mktemp("whole")
    go(folder)
    return folder


# --- what there is to choose


def test_the_defaults_are_the_papers():
    """Section 5: 100,000 steps, 25,000 tokens, warm-up 4,000, smoothing 0.1."""
    config = TrainingConfig()
    assert (config.steps, config.batch_tokens) == (100_000, 25_000)
    assert (config.warmup, config.factor) == (4_000, 1.0)
    assert (config.label_smoothing, config.clip) == (0.1, 0.0)
    assert (config.checkpoint_every, config.keep) == (1_500, 5)
    assert (config.accumulate, config.patience, config.seed) == (1, 0, 0)
    assert (config.precision, config.compile) == ("auto", False)
    assert (config.workers, config.tensorboard) == (0, False)
    assert (config.validate_every, config.log_every) == (1_500, 100)


NUMBERS = [f.name for f in fields(TrainingConfig) if f.type in (int, float)]
POSITIVE = {
    "steps",
    "batch_tokens",
    "accumulate",
    "warmup",
    "factor",
    "log_every",
    "validate_every",
    "checkpoint_every",
    "keep",
}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [-1, "7", None, True, math.nan, math.inf])
def test_bad_numbers_are_refused_by_name(name, value):
    """Negative, of another type, or no number at all."""
    with pytest.raises(ValueError, match=f"^{name}: {value!r}, expected "):
        TrainingConfig(**{name: value})


@pytest.mark.parametrize("name", NUMBERS)
def test_zero_only_where_it_means_something(name):
    """Zero is no number of updates, but no clipping, no patience, a seed."""
    if name in POSITIVE:
        with pytest.raises(ValueError, match=f"^{name}: 0, expected more"):
            TrainingConfig(**{name: 0})
    else:
        assert getattr(TrainingConfig(**{name: 0}), name) == 0


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("steps", 1.5, "steps: 1.5, expected int"),
        ("label_smoothing", 1.0, "label_smoothing: 1.0, expected less than 1"),
        ("precision", "fp16", "precision: 'fp16', expected 'auto', 'bf16' or"),
        ("precision", 16, "precision: 16, expected str"),
        ("compile", 1, "compile: 1, expected bool"),
        ("tensorboard", "yes", "tensorboard: 'yes', expected bool"),
    ],
)
def test_other_bad_values_are_refused_by_name(name, value, message):
    """The message says what was given and what would do."""
    with pytest.raises(ValueError, match=f"^{message}"):
        TrainingConfig(**{name: value})


def test_whole_numbers_do_for_fractions():
    """A factor of 2 is a factor of 2.0."""
    assert TrainingConfig(factor=2, clip=1).factor == 2.0


def test_seeds_that_torch_cannot_take_are_refused_by_name():
    """Torch would say "Overflow when unpacking long" much later."""
    with pytest.raises(ValueError, match=r"^seed: "):
        TrainingConfig(seed=2**64)


# --- one update


class Deaf(Worker):
    """One of two workers, who never hears of the other."""

    def all_reduce(self, numbers):
        """What it has itself."""
        return numbers

    def any_rank(self, flag):
        """What it knows itself."""
        return flag


@pytest.mark.parametrize("parts", [2, 3, 4])
def test_parts_of_a_batch_are_as_good_as_the_whole(parts):
    """Two updates, each cut into parts, lead to the same parameters."""
    ends = []
    for count in (1, parts):
        learner = ModelWithLoss(tiny(dropout=0.0).double())
        optimizer = noam(learner.model, warmup=10)
        for number in (0, 1):
            train_step(learner, optimizer, a_batch(count, number=number))
        ends.append(learner.model.state_dict())
    for name in ends[0]:
        assert_close(ends[1][name], ends[0][name], rtol=1e-9, atol=1e-11)


def test_more_parts_than_sentences():
    """Parts without a label change nothing."""
    pairs = ListPairs(PAIRS.sources[:2], PAIRS.targets[:2])
    results = []
    for count in (1, 5):
        learner = ModelWithLoss(tiny(dropout=0.0).double())
        parts = a_batch(count, pairs)
        assert len(parts) == count
        sums, norm = train_step(learner, noam(learner.model), parts)
        results.append((sums, norm, learner.model.embeddings.weight.detach()))
    for ours, theirs in zip(*results, strict=True):
        assert_close(ours, theirs)


def test_every_token_counts_the_same():
    """The gradient is that of one cross-entropy over all tokens."""
    pairs = ListPairs([[4], [5, 6, 7]], [[8], [9] * 15])
    model = tiny(dropout=0.0).double()
    parts = [
        Batch(
            collate([pairs.source(i)]), collate([pairs.target(i)], True), 2 + 16
        )
        for i in (0, 1)
    ]
    scores, labels = [], []
    for part in parts:
        inputs, answers = shift_right(part.tgt)
        scores.append(model(part.src, inputs).flatten(0, 1))
        labels.append(answers.flatten())
    known = F.cross_entropy(torch.cat(scores), torch.cat(labels))
    known.backward()
    wanted = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()

    class Remembering:
        """An optimizer that only looks."""

        def step(self):
            """Keep the gradients."""
            self.seen = {n: p.grad.clone() for n, p in model.named_parameters()}

        def zero_grad(self):
            """Forget them."""
            model.zero_grad()

    optimizer = Remembering()
    sums, norm = train_step(ModelWithLoss(model, epsilon=0.0), optimizer, parts)
    assert_close(sums / 18, known.detach().float().expand(2))
    for name, gradient in wanted.items():
        assert_close(optimizer.seen[name], gradient)
    squares = sum(float((g**2).sum()) for g in wanted.values())
    assert float(norm) == pytest.approx(math.sqrt(squares))
    assert all(p.grad is None for p in model.parameters())


def test_the_loss_is_smoothed_but_the_likelihood_is_not():
    """The sums of an update are those of the readable loss."""
    model = tiny(dropout=0.0)
    (part,) = a_batch()
    inputs, labels = shift_right(part.tgt)
    with torch.no_grad():
        known = label_smoothed_cross_entropy(
            model(part.src, inputs), labels, 0.3
        )
    sums, _ = train_step(ModelWithLoss(model, 0.3), noam(model), [part])
    assert_close(sums, torch.stack([known.smoothed, known.nll]))


def test_among_many_the_gradient_is_what_their_mean_will_be():
    """Gradients of workers are averaged, so each is as many times as large."""
    norms = []
    for worker in (SINGLE, Deaf(0, 3)):
        model = tiny(dropout=0.0)
        _, norm = train_step(
            ModelWithLoss(model), noam(model), a_batch(2), worker=worker
        )
        norms.append(norm)
    assert_close(norms[1], 3 * norms[0])


class Meeting(ModelWithLoss):
    """A learner that notes when it keeps its gradients to itself."""

    alone = 0

    def no_sync(self):
        """As of DistributedDataParallel."""
        self.alone += 1
        return contextlib.nullcontext()


@pytest.mark.parametrize("parts", [1, 3])
def test_workers_exchange_gradients_once_for_each_update(parts):
    """After the last part, and not before."""
    learner = Meeting(tiny())
    train_step(learner, noam(learner.model), a_batch(parts))
    assert learner.alone == parts - 1


class Spy(NoamOptimizer):
    """Notes the norm of the gradient at each step."""

    norms = ()

    def step(self):
        """Note it, and step."""
        gradients = [p.grad for p in self.adam.param_groups[0]["params"]]
        norm = math.sqrt(sum(float((g**2).sum()) for g in gradients))
        self.norms = (*self.norms, norm)
        super().step()


def test_clip():
    """A gradient is shortened to the limit, or left alone below it."""
    for clip, shortened in ((0.0, False), (0.01, True), (1e6, False)):
        model = tiny(dropout=0.0)
        optimizer = Spy(model.parameters(), 16)
        _, norm = train_step(ModelWithLoss(model), optimizer, a_batch(2), clip)
        assert norm > 0.1  # before clipping
        wanted = clip if shortened else float(norm)
        assert optimizer.norms == (pytest.approx(wanted, rel=1e-3),)


@pytest.mark.parametrize("parts", [1, 3])
def test_the_schedule_ticks_once_for_each_update(parts):
    """Not once for each part."""
    model = tiny()
    optimizer = noam(model, warmup=100, factor=2.0)
    for number in (1, 2):
        train_step(ModelWithLoss(model), optimizer, a_batch(parts))
        assert optimizer.steps == number
        assert optimizer.rate == noam_rate(number, 16, 100, 2.0)


@pytest.mark.parametrize(
    "poison", ["weight", "last part", "gradient", "likelihood"]
)
def test_a_loss_that_is_no_number_changes_nothing(poison):
    """Parameters, moments and schedule stay as they were, to the bit."""
    model = tiny(dropout=0.0)
    learner, optimizer = ModelWithLoss(model), noam(model)
    train_step(learner, optimizer, a_batch())
    if poison == "weight":
        next(model.decoder.parameters()).data[0, 3] = math.inf
    elif poison == "gradient":
        model.embeddings.weight.register_hook(lambda g: g * math.nan)
    else:
        real, calls = learner.forward, []

        def forward(src, tgt):
            calls.append(src)
            loss = real(src, tgt)
            if len(calls) == 3 and poison == "likelihood":
                loss = replace(loss, nll=loss.nll * math.nan)
            elif len(calls) == 3:
                loss = replace(loss, smoothed=loss.smoothed * math.inf)
            return loss

        learner.forward = forward
    before = {k: v.clone() for k, v in model.state_dict().items()}
    moments = pickle.dumps(optimizer.state_dict())
    with pytest.raises(FloatingPointError, match=r"loss is .* norm of the gra"):
        train_step(learner, optimizer, a_batch(3))
    after = model.state_dict()
    assert all(
        after[name].numpy().tobytes() == before[name].numpy().tobytes()
        for name in before
    )
    assert pickle.dumps(optimizer.state_dict()) == moments
    assert optimizer.steps == 1


def test_who_goes_on_after_a_bad_batch_is_not_haunted_by_it():
    """Bad gradients are gone before the next update."""
    model = tiny(dropout=0.0)
    learner, optimizer = ModelWithLoss(model), noam(model)
    hook = model.embeddings.weight.register_hook(lambda g: g * math.nan)
    with pytest.raises(FloatingPointError):
        train_step(learner, optimizer, a_batch())
    hook.remove()
    assert all(p.grad is None for p in model.parameters())
    train_step(learner, optimizer, a_batch())


def test_bfloat16_on_a_processor():
    """Losses are finite and near those of float32; parameters stay float32."""
    results = []
    for bf16 in (False, True):
        model = tiny(dropout=0.0)
        kinds = []
        model.decoder.layers[0].feed_forward.register_forward_hook(
            lambda *seen, kinds=kinds: kinds.append(seen[-1].dtype)
        )
        sums, norm = train_step(
            ModelWithLoss(model), noam(model), a_batch(2), bf16=bf16
        )
        assert set(kinds) == {torch.bfloat16 if bf16 else torch.float32}
        assert sums.dtype == torch.float32
        assert all(p.dtype == torch.float32 for p in model.parameters())
        results.append((sums, norm))
    assert_close(results[1], results[0], rtol=0.05, atol=0.05)
    assert not torch.equal(results[1][0], results[0][0])


# --- validation


@torch.no_grad()
def naive(model, pairs, epsilon):
    """The scores of a model, sentence by sentence."""
    smoothed = nll = tokens = right = exact = 0
    for i in range(len(pairs.sources)):
        inputs, labels = shift_right(collate([pairs.target(i)], start=True))
        logits = model(collate([pairs.source(i)]), inputs)
        loss = label_smoothed_cross_entropy(logits, labels, epsilon)
        smoothed, nll = smoothed + float(loss.smoothed), nll + float(loss.nll)
        tokens += labels.numel()
        hits = logits.argmax(-1) == labels
        right, exact = right + int(hits.sum()), exact + int(hits.all())
    return {
        "valid_loss": smoothed / tokens,
        "valid_nll": nll / tokens,
        "valid_perplexity": math.exp(nll / tokens),
        "valid_accuracy": right / tokens,
        "valid_exact": exact / len(pairs.sources),
    }


def test_validation_is_what_a_naive_loop_finds():
    """With dropout off, whatever the mode before; sentences of many lengths."""
    model = tiny(dropout=0.5)
    known = naive(model.eval(), VALID, 0.2)
    for mode in (True, False):
        learner = ModelWithLoss(model, 0.2).train(mode)
        scores = validate(learner, VALID, 30)
        assert scores == pytest.approx(known, rel=1e-5)
        assert learner.training is mode and model.training is mode
        assert all(p.grad is None for p in model.parameters())


def test_validation_of_a_model_that_learned_one_pair():
    """One sentence of three is right, with all its tokens."""
    pairs = ListPairs([[4, 5], [4, 5], [8, 9, 10]], [[5, 4], [5, 7], [10, 9]])
    model = tiny(dropout=0.0)
    learner, optimizer = ModelWithLoss(model, 0.0), noam(model, warmup=20)
    first = ListPairs(pairs.sources[:1], pairs.targets[:1])
    for _ in range(40):
        train_step(learner, optimizer, a_batch(1, first))
    scores = validate(learner, pairs, 30)
    assert scores == pytest.approx(naive(model, pairs, 0.0), rel=1e-4)
    assert scores["valid_exact"] == pytest.approx(1 / 3)
    assert 1 / 3 < scores["valid_accuracy"] < 1
    alone = validate(learner, first, 30)
    assert (alone["valid_exact"], alone["valid_accuracy"]) == (1, 1)


@pytest.mark.parametrize("parts", [2, 5])
def test_validation_in_parts(parts):
    """Who has no memory for whole batches gets the same scores in parts."""
    learner, shapes = ModelWithLoss(tiny().eval()), []
    learner.register_forward_pre_hook(
        lambda _, args: shapes.append(len(args[0]))
    )
    whole = validate(learner, VALID, 30)
    largest = max(shapes)
    shapes.clear()
    cut = validate(learner, VALID, 30, accumulate=parts)
    assert cut == pytest.approx(whole, rel=1e-5)
    assert max(shapes) == -(-largest // parts)


def test_validation_in_bfloat16():
    """The same to a few digits."""
    learner = ModelWithLoss(tiny().eval())
    fine, coarse = (
        validate(learner, VALID, 30, bf16) for bf16 in (False, True)
    )
    assert coarse["valid_nll"] == pytest.approx(fine["valid_nll"], rel=0.05)
    assert coarse["valid_nll"] != fine["valid_nll"]


def test_validation_of_a_hopeless_model():
    """A likelihood beyond what exp can say is still a validation."""
    model = tiny()
    model.embeddings.weight.data *= 1e4
    scores = validate(ModelWithLoss(model), VALID, 30)
    assert scores["valid_nll"] > 1000
    assert 1e300 < scores["valid_perplexity"] < math.inf


# --- how far a run has come


def test_due():
    """Every third update, and not at the others."""
    due = [step for step in range(1, 10) if TrainState(step=step).is_due(3)]
    assert due == [3, 6, 9]


def test_judge_and_patience():
    """Each new best starts the count anew; equal is no progress."""
    progress, config = TrainState(), TrainingConfig(patience=2)
    history = []
    for step, nll in enumerate([3.0, 2.0, 2.5, 1.5, 1.5, 1.6], 1):
        progress.step = step
        assert not progress.finished(config)
        progress.record_validation(nll)
        history.append((progress.best_nll, progress.best_step, progress.worse))
    assert history == [
        (3.0, 1, 0),
        (2.0, 2, 0),
        (2.0, 2, 1),
        (1.5, 4, 0),
        (1.5, 4, 1),
        (1.5, 4, 2),
    ]
    assert progress.finished(config)
    assert not progress.finished(TrainingConfig(patience=0))
    assert not progress.finished(TrainingConfig(patience=3))


def test_over_when_all_steps_are_done():
    """At the last step, and beyond, if a run was longer before."""
    config = TrainingConfig(steps=5)
    over = [TrainState(step=step).finished(config) for step in (4, 5, 6)]
    assert over == [False, True, True]


def test_count():
    """Tokens and losses add up; the window is that of the metrics."""
    progress = TrainState()
    progress.record_step(torch.tensor([6.0, 4.0]), 2)
    progress.record_step(torch.tensor([1.0, 2.0]), 3)
    assert (progress.step, progress.tokens) == (2, 5)
    assert progress.sums == [7.0, 6.0, 5.0]


def test_seed_step():
    """The same place gives the same numbers, any other gives others."""
    drawn = {}
    for place in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 2, 0)]:
        seed_step(*place)
        drawn[place] = float(torch.rand(()))
    assert len(set(drawn.values())) == len(drawn)
    seed_step(0, 1, 0)
    assert float(torch.rand(())) == drawn[0, 1, 0]


def ids(batches):
    """All ids of some updates' parts, to compare."""
    return [
        [
            (part.src.tolist(), part.tgt.tolist(), part.update_tokens)
            for part in parts
        ]
        for parts in batches
    ]


def test_a_resumed_stream_is_the_tail_of_the_whole():
    """From every place, over the ends of epochs."""
    config = replace(CONFIG, seed=3)
    count = len(Batches(PAIRS, 40, 3, 0))
    progress = TrainState()
    places, whole = [], []
    for parts in training_batches(PAIRS, config, progress):
        whole.append(parts)
        places.append((progress.epoch, progress.batch))
        if len(whole) == 2 * count + 3:
            break
    known = ids(whole)
    assert places[count - 1 : count + 1] == [(0, count), (1, 1)]
    assert known[:count] == ids(Batches(PAIRS, 40, 3, 0, accumulate=2))
    assert known[:count] != known[count : 2 * count]
    for done in (1, count - 1, count, count + 1, 2 * count):
        again = TrainState(epoch=places[done - 1][0], batch=places[done - 1][1])
        rest = training_batches(PAIRS, config, again)
        tail = [next(rest) for _ in known[done:]]
        assert ids(tail) == known[done:]
        assert (again.epoch, again.batch) == places[-1]


def test_each_worker_streams_its_own_parts():
    """Rank and world_size reach the batches."""
    workers = [Worker(rank=rank, world_size=2) for rank in (0, 1)]
    first = [
        next(training_batches(PAIRS, CONFIG, TrainState(), w)) for w in workers
    ]
    for rank, parts in enumerate(first):
        wanted = Batches(PAIRS, 40, 0, 0, rank, 2, 2)[0]
        assert ids([parts]) == ids([wanted])


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_batches_for_a_gpu_wait_in_pinned_memory(monkeypatch, device):
    """And only those; prepared by as many processes as were asked for."""
    seen = {}

    def loader(batches, **options):
        seen.update(options)
        return [batches[0]]

    monkeypatch.setattr(training, "DataLoader", loader)
    worker = Worker(device=torch.device(device))
    next(
        training_batches(
            PAIRS, replace(CONFIG, workers=3), TrainState(batch=2), worker
        )
    )
    assert seen["pin_memory"] is (device == "cuda")
    assert (seen["num_workers"], seen["sampler"][0]) == (3, 2)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_processes_that_prepare_batches_change_nothing(tmp_path, uninterrupted):
    """The same run, though other processes make the batches."""
    go(tmp_path, workers=1)
    assert_same_run(tmp_path, uninterrupted)


# --- a run


def test_a_run_learns(tmp_path):
    """Forty updates bring the loss down."""
    go(
        tmp_path,
        model=tiny(dropout=0.0),
        steps=40,
        batch_tokens=200,
        warmup=20,
        factor=0.5,
        valid=None,
    )
    first, *_, last = read_metrics(tmp_path)
    assert last["nll"] < 0.8 * first["nll"]


def test_the_metrics_of_a_run(uninterrupted):
    """What is written, how often, and that the numbers belong together."""
    rows = read_metrics(uninterrupted)
    logged = [row for row in rows if "loss" in row]
    validated = [row for row in rows if "valid_loss" in row]
    assert [row["step"] for row in logged] == [3, 6, 9, 12]
    assert [row["step"] for row in validated] == [4, 8, 12]
    assert len(rows) == 7
    count = len(Batches(PAIRS, 40))
    tokens = [
        number for e in (0, 1) for number in Batches(PAIRS, 40, 0, e).tokens
    ]
    for row in rows:
        assert row["tokens"] == sum(tokens[: row["step"]])
        assert row["epoch"] == (row["step"] - 1) // count
    for row in logged:
        assert row["rate"] == noam_rate(row["step"], 16, 10)
        assert row["perplexity"] == pytest.approx(math.exp(row["nll"]))
        assert 2 < row["nll"] < 4 and 2 < row["loss"] < 4
        assert row["gradient"] > 0
    seconds = [row["seconds"] for row in rows]
    assert seconds == sorted(seconds)


def test_a_line_is_the_mean_since_the_last(tmp_path, uninterrupted):
    """Weighted by tokens, not by updates."""
    go(tmp_path, log_every=1)
    each = [row for row in read_metrics(tmp_path) if "loss" in row]
    threes = [row for row in read_metrics(uninterrupted) if "loss" in row]
    ends = [0, *(row["tokens"] for row in each)]
    shares = np.diff(ends)
    for i, row in enumerate(threes):
        window = slice(3 * i, 3 * i + 3)
        for name in ("loss", "nll"):
            values = [r[name] for r in each[window]]
            mean = np.average(values, weights=shares[window])
            assert row[name] == pytest.approx(mean, rel=1e-6)


def test_a_run_is_repeatable(tmp_path, uninterrupted):
    """The seed decides dropout and order; another seed, another run."""
    go(tmp_path / "same")
    assert_same_run(tmp_path / "same", uninterrupted)
    go(tmp_path / "other", seed=1)
    assert not same(weights_of(tmp_path / "other"), weights_of(uninterrupted))


def test_dropout_differs_between_updates(tmp_path, monkeypatch):
    """Each update has random numbers of its own."""
    drawn = []
    real = training.train_step

    def looking(*args):
        drawn.append(float(torch.rand(())))
        return real(*args)

    monkeypatch.setattr(training, "train_step", looking)
    go(tmp_path, steps=4)
    assert len(set(drawn)) == 4


def test_each_setting_reaches_the_update(tmp_path, monkeypatch):
    """Clip, precision, smoothing, warm-up and factor are not only stored."""
    seen = []

    def looking(learner, optimizer, parts, clip, bf16, worker):
        seen.append((learner.epsilon, optimizer.schedule, clip, bf16, worker))
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "train_step", looking)
    with pytest.raises(KeyboardInterrupt):
        go(
            tmp_path,
            clip=0.5,
            precision="bf16",
            label_smoothing=0.2,
            warmup=7,
            factor=3.0,
        )
    schedule = {"d_model": 16, "warmup": 7, "factor": 3.0}
    assert seen == [(0.2, schedule, 0.5, True, SINGLE)]


def test_training_starts_from_a_model_in_any_mode(tmp_path):
    """A model that was evaluated before still trains with dropout."""
    for name, model in (("a", tiny()), ("b", tiny().eval())):
        go(tmp_path / name, model=model, steps=3)
        assert model.training
    assert_same_run(tmp_path / "a", tmp_path / "b")


def test_patience_ends_a_run(tmp_path, monkeypatch):
    """Two validations without progress, and a last checkpoint."""
    answers = iter([3.0, 2.0, 2.1, 2.2, 0.0])
    monkeypatch.setattr(
        training, "validate", lambda *_: {"valid_nll": next(answers)}
    )
    progress = go(
        tmp_path,
        validate_every=1,
        patience=2,
        checkpoint_every=1,
        keep=1,
    )
    assert (progress.step, progress.best_step, progress.worse) == (4, 2, 2)
    kept = [path.name for path in list_checkpoints(tmp_path / "checkpoints")]
    assert kept == ["step-4"]
    assert go(tmp_path, resume=True, patience=2).step == 4


@pytest.mark.parametrize("rank", [0, 1])
def test_only_the_first_worker_writes(tmp_path, monkeypatch, rank, capfd):
    """Checkpoints, metrics, and what is to be done at the beginning."""
    monkeypatch.setattr(training, "_wrap", lambda learner, *_: learner)
    begun, worker = [], Deaf(rank, 2)
    config = replace(CONFIG, steps=4)
    folder = tmp_path / "run"
    train(
        tiny(),
        PAIRS,
        VALID,
        config,
        folder,
        worker=worker,
        on_start=lambda: begun.append(list_checkpoints(folder / "checkpoints")),
    )
    assert begun == ([[]] if rank == 0 else [])
    assert folder.exists() is (rank == 0)
    assert (capfd.readouterr().out == "") is (rank == 1)


def test_workers_that_see_different_checkpoints(tmp_path):
    """Without a shared disk, one would begin where others go on."""
    go(tmp_path, steps=2)
    with pytest.raises(TrainingError, match=r"worker 1 would begin .* 2,"):
        train(tiny(), PAIRS, VALID, CONFIG, tmp_path, True, worker=Deaf(1, 2))


def test_nothing_is_begun_that_is_refused(uninterrupted):
    """Whoever waits for a beginning does not hear of it."""
    for resume, changes in ((False, {}), (True, {"seed": 5})):
        config = replace(CONFIG, steps=14, **changes)
        with pytest.raises(ValueError, match=r"holds a run|seed"):
            train(
                tiny(),
                PAIRS,
                VALID,
                config,
                uninterrupted,
                resume,
                on_start=pytest.fail,
            )


def test_a_run_without_validation(tmp_path):
    """No pairs to validate on, no lines about it."""
    progress = go(tmp_path, valid=None)
    assert progress.best_step == 0
    assert {row["step"] for row in read_metrics(tmp_path)} == {3, 6, 9, 12}


@pytest.mark.parametrize("which", ["train", "validate"])
def test_sentences_too_long_for_a_batch_are_found_at_the_start(tmp_path, which):
    """Not at the first validation, hours later."""
    long = ListPairs([*PAIRS.sources, [5] * 60], [*PAIRS.targets, [5]])
    pairs, valid = (long, VALID) if which == "train" else (PAIRS, long)
    with pytest.raises(ValueError, match=r"^batch_tokens: 40, .* least 61"):
        train(tiny(), pairs, valid, CONFIG, tmp_path, progress_bar=False)
    assert not list_checkpoints(tmp_path / "checkpoints")
    assert not read_metrics(tmp_path)


@pytest.mark.filterwarnings("ignore")  # dynamo warns itself
def test_compile_is_applied_for_batches_of_any_shape(tmp_path, monkeypatch):
    """Compiled with dynamic shapes; the run is the same to rounding."""
    asked, real = [], torch.compile

    def fake(module, **options):
        asked.append((module, options))
        return real(module, backend="eager", **options)

    monkeypatch.setattr(torch, "compile", fake)
    shape = {"steps": 1, "log_every": 1, "accumulate": 1}
    models = [tiny(dropout=0.0), tiny(dropout=0.0)]
    go(tmp_path / "plain", model=models[0], **shape)
    assert not asked
    go(tmp_path / "compiled", model=models[1], compile=True, **shape)
    ((module, options),) = asked
    assert isinstance(module, ModelWithLoss) and options == {"dynamic": True}
    pairs = zip(
        read_metrics(tmp_path / "plain"),
        read_metrics(tmp_path / "compiled"),
        strict=True,
    )
    for ours, theirs in pairs:
        assert ours.keys() == theirs.keys()
        names = ours.keys() - {"seconds"}
        assert [theirs[n] for n in names] == pytest.approx(
            [ours[n] for n in names], rel=1e-5
        )
    saved = weights_of(tmp_path / "compiled")
    assert saved.keys() == models[0].state_dict().keys()


def test_auto_precision(monkeypatch):
    """Bfloat16 where a GPU really has it, and where it is asked for."""
    cpu, cuda = Worker(), Worker(device=torch.device("cuda"))
    for answer in (True, False):

        def supported(including_emulation, answer=answer):
            assert including_emulation is False
            return answer

        monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
        for name, device, wanted in (
            ("auto", cpu, False),
            ("auto", cuda, answer),
            ("bf16", cpu, True),
            ("bf16", cuda, True),
            ("float32", cuda, False),
        ):
            config = TrainingConfig(precision=name)
            assert training._use_bf16(config, device) is wanted


# --- checkpoints


def saved(folder, step=1, seed=1, settings=None, **changes):
    """A checkpoint of a fresh model."""
    model = tiny(seed, **changes)
    return save_checkpoint(
        folder, model, noam(model), TrainState(step=step), settings or {}
    )


def test_a_checkpoint_brings_everything_back(tmp_path):
    """Parameters, moments and progress; the settings are compared."""
    model = tiny()
    optimizer = noam(model)
    for number in (0, 1):
        train_step(ModelWithLoss(model), optimizer, a_batch(number=number))
    progress = TrainState(2, 3, 4, 5, 6.5, 7.5, 8, 9, [1.0, 2.0, 3.0])
    settings = {"seed": 0, "factor": 1.0}
    path = save_checkpoint(tmp_path, model, optimizer, progress, settings)
    assert path == tmp_path / "step-2"
    other = tiny(seed=5)
    theirs = noam(other)
    assert load_checkpoint(path, other, theirs, settings) == progress
    assert same(other.state_dict(), model.state_dict())
    assert theirs.steps == 2
    for a, b in zip(
        optimizer.adam.state.values(), theirs.adam.state.values(), strict=True
    ):
        assert same(a, b)


def test_a_checkpoint_is_two_files_with_nothing_to_run(tmp_path):
    """Tensors as safetensors, the rest of types that hold no code."""
    path = saved(tmp_path)
    assert {file.name for file in path.iterdir()} == {
        "model.safetensors",
        "training.pt",
    }
    with zipfile.ZipFile(path / "training.pt") as archive:
        (name,) = [n for n in archive.namelist() if n.endswith("data.pkl")]
        data = archive.read(name)
    named = {
        argument
        for code, argument, _ in pickletools.genops(data)
        if code.name == "GLOBAL"
    }
    assert named <= {
        "torch._utils _rebuild_tensor_v2",
        "torch FloatStorage",
        "collections OrderedDict",
    }
    assert "STACK_GLOBAL" not in {
        op.name for op, *_ in pickletools.genops(data)
    }


def test_only_whole_checkpoints_are_listed(tmp_path):
    """By number, and without drafts or what else is there."""
    for name in ("step-9", "step-10", "step-100", ".draft-11", "step-x"):
        (tmp_path / name).mkdir()
    (tmp_path / ".draft-step-3").mkdir()
    (tmp_path / "step-12.old").mkdir()
    names = [path.name for path in list_checkpoints(tmp_path)]
    assert names == ["step-9", "step-10", "step-100"]
    assert list_checkpoints(tmp_path / "missing") == []


def test_a_leftover_draft_does_not_disturb(tmp_path):
    """What a killed process left is replaced, not added to."""
    draft = tmp_path / ".draft-1"
    (draft / "nested").mkdir(parents=True)
    (draft / "model.safetensors").write_bytes(b"half")
    path = saved(tmp_path)
    assert len(list(path.iterdir())) == 2
    load_weights(tiny(), path)
    assert not draft.exists()


def test_a_checkpoint_that_exists_is_left_alone(tmp_path):
    """The same step again is the same run again."""
    path = saved(tmp_path)
    before = (path / "model.safetensors").read_bytes()
    assert saved(tmp_path, seed=2) == path
    assert (path / "model.safetensors").read_bytes() == before


def test_everything_is_on_the_disk_before_it_gets_its_name(
    tmp_path, monkeypatch
):
    """Files, then their folder, then the name, then the folder above."""
    order, real = [], Path.rename

    def noting(path):
        order.append(path.name)

    def renaming(path, other):
        order.append("rename")
        return real(path, other)

    monkeypatch.setattr(training, "_to_disk", noting)
    monkeypatch.setattr(Path, "rename", renaming)
    folder = tmp_path / "run"
    saved(folder)
    assert set(order[:2]) == {"model.safetensors", "training.pt"}
    assert order[2:] == [".draft-1", "rename", "run"]


def test_to_disk_reaches_the_disk(tmp_path, monkeypatch):
    """It waits for the very file, and closes it."""
    synced = []
    monkeypatch.setattr(
        os, "fsync", lambda handle: synced.append(os.fstat(handle).st_ino)
    )
    file = tmp_path / "file"
    file.touch()
    before = len(os.listdir("/proc/self/fd"))
    for path in (file, tmp_path):
        training._to_disk(path)
    assert synced == [file.stat().st_ino, tmp_path.stat().st_ino]
    assert len(os.listdir("/proc/self/fd")) == before


def test_prune(tmp_path):
    """The last few stay, the others are gone without a trace."""
    for step in (1, 2, 3, 9, 10, 11):
        saved(tmp_path, step)
    prune_checkpoints(tmp_path, keep=2)
    assert {p.name for p in tmp_path.iterdir()} == {"step-10", "step-11"}
    prune_checkpoints(tmp_path, keep=5)
    assert len(list_checkpoints(tmp_path)) == 2
    prune_checkpoints(tmp_path, keep=1)
    assert os.listdir(tmp_path) == ["step-11"]


def test_prune_sweeps_up_what_killed_processes_left(tmp_path):
    """Drafts of checkpoints, and of their removal, even of the same step."""
    for step in (1, 2, 3):
        saved(tmp_path, step)
    shutil.copytree(tmp_path / "step-1", tmp_path / ".draft-step-1")
    shutil.copytree(tmp_path / "step-1", tmp_path / ".draft-7")
    prune_checkpoints(tmp_path, keep=2)
    assert sorted(os.listdir(tmp_path)) == ["step-2", "step-3"]


def test_a_run_keeps_the_last_checkpoints(tmp_path):
    """Those of the recipe's rhythm, the last update's, and no draft."""
    go(tmp_path, steps=11)
    names = sorted(os.listdir(tmp_path / "checkpoints"))
    assert names == ["step-10", "step-11"]


def test_another_size_is_refused_with_name_and_shapes(tmp_path):
    """Whichever tensor comes first: what is there, and what was expected."""
    path = saved(tmp_path)
    with pytest.raises(ValueError, match=r"step-1: .* is \(16,\), .* \(32,\)"):
        load_weights(tiny(d_model=32), path)
    model = tiny(layers=2)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(ValueError, match=r"layers\.1\..* is missing, .* \("):
        load_weights(model, path)
    assert same(model.state_dict(), before)
    larger = saved(tmp_path, 2, layers=2)
    with pytest.raises(ValueError, match=r"layers\.1\..* is \(.* is missing"):
        load_weights(tiny(), larger)


DAMAGE = {
    "missing": None,
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "garbage": lambda data: b"x" * 100,
    "a pickle": lambda data: pickle.dumps({"a": 1}),
}


def damage(path, how):
    """Do something to a file."""
    data = path.read_bytes()
    path.unlink()
    if DAMAGE[how] is not None:
        path.write_bytes(DAMAGE[how](data))


@pytest.mark.parametrize("how", DAMAGE)
def test_damaged_weights_are_refused(tmp_path, how):
    """With the file's name, and no half-filled model."""
    path = saved(tmp_path)
    damage(path / "model.safetensors", how)
    model = tiny(seed=4)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(ValueError, match=r"model\.safetensors: cannot be read"):
        load_checkpoint(path, model, noam(model), {})
    assert same(model.state_dict(), before)


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_state_is_refused(tmp_path, how):
    """With the file's name and in one line."""
    path = saved(tmp_path)
    damage(path / "training.pt", how)
    model = tiny()
    with pytest.raises(ValueError, match=r"training\.pt: cannot be read") as no:
        load_checkpoint(path, model, noam(model), {})
    assert "\n" not in str(no.value)


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"settings": {}, "optimizer": {}, "progress": {"laps": 3}},
        {"settings": 3, "optimizer": {}, "progress": {}},
        {"settings": {}, "optimizer": 3, "progress": {}},
        [1, 2],
    ],
)
def test_a_state_of_something_else_is_refused(tmp_path, state):
    """A file that torch can read need not be ours."""
    path = saved(tmp_path)
    torch.save(state, path / "training.pt")
    model = tiny()
    with pytest.raises(ValueError, match=r"training\.pt: cannot be read"):
        load_checkpoint(path, model, noam(model), {"seed": 0})


class Evil:
    """A pickle that runs a command, or rather would."""

    def __reduce__(self):
        """What unpickling would call."""
        return os.mkdir, (os.environ["EVIL"],)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("form", ["torch", "pickle"])
def test_no_code_from_a_checkpoint_is_run(tmp_path, monkeypatch, form):
    """A pickle with a command is refused, and the command is not run."""
    trace = tmp_path / "evil"
    monkeypatch.setenv("EVIL", str(trace))
    path = saved(tmp_path / "run")
    state = {"progress": Evil(), "settings": {}, "optimizer": {}}
    if form == "torch":
        torch.save(state, path / "training.pt")
    else:
        (path / "training.pt").write_bytes(pickle.dumps(state))
    model = tiny()
    with pytest.raises((ValueError, pickle.UnpicklingError)):
        load_checkpoint(path, model, noam(model), {})
    assert not trace.exists()
    pickle.loads(pickle.dumps(Evil()))
    assert trace.exists()  # it would have


@pytest.mark.parametrize("form", ["torch", "pickle"])
def test_code_is_refused_like_other_damage(tmp_path, monkeypatch, form):
    """In one line, that names the file."""
    monkeypatch.setenv("EVIL", str(tmp_path / "evil"))
    path = saved(tmp_path / "run")
    if form == "torch":
        torch.save({"progress": Evil()}, path / "training.pt")
    else:
        (path / "training.pt").write_bytes(pickle.dumps(Evil()))
    model = tiny()
    with pytest.raises(ValueError, match=r"training\.pt: cannot be read") as no:
        load_checkpoint(path, model, noam(model), {})
    assert "\n" not in str(no.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, "seed: 1, .* with 0"),
        ({"warmup": 11}, "warmup: 11, .* with 10"),
        ({"batch_tokens": 50}, "batch_tokens: 50, .* with 40"),
        ({"label_smoothing": 0.2}, r"label_smoothing: 0\.2, .* with 0\.1"),
    ],
)
def test_settings_that_cannot_change_are_refused(
    tmp_path, uninterrupted, changes, message
):
    """By name, with both values; and the run is left as it was."""
    shutil.copytree(uninterrupted, tmp_path / "run")
    with pytest.raises(ValueError, match=f"^{message}"):
        go(tmp_path / "run", resume=True, steps=14, **changes)
    assert_same_run(tmp_path / "run", uninterrupted)


def test_another_model_or_corpus_is_refused(tmp_path, uninterrupted):
    """Dropout has no shape, and a shorter corpus other batches."""
    config = replace(CONFIG, steps=14)
    with pytest.raises(ValueError, match=r"^dropout: 0\.2, .* with 0\.1"):
        train(tiny(dropout=0.2), PAIRS, None, config, uninterrupted, True)
    fewer = ListPairs(PAIRS.sources[1:], PAIRS.targets[1:])
    with pytest.raises(ValueError, match=r"^pairs: 59, .* with 60"):
        train(tiny(), fewer, None, config, uninterrupted, True)
    assert len(read_metrics(uninterrupted)) == 7


def test_what_the_advice_says_is_possible(tmp_path, uninterrupted):
    """After a loss that is no number, one may go on with clipping."""
    shutil.copytree(uninterrupted, tmp_path / "run")
    go(tmp_path / "run", resume=True, steps=13, clip=1.0)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize(
    "changes",
    [
        {"accumulate": 1},
        {"precision": "float32"},
        {"log_every": 1},
        {"validate_every": 1},
        {"patience": 100},
        {"checkpoint_every": 1},
        {"keep": 9},
        {"workers": 1},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_settings_that_may_change(tmp_path, uninterrupted, changes):
    """How long, how cut, how often, how shown."""
    shutil.copytree(uninterrupted, tmp_path / "run")
    progress = go(tmp_path / "run", resume=True, steps=14, **changes)
    assert progress.step == 14
    assert (tmp_path / "run/checkpoints/step-14").exists()


def test_a_folder_with_a_run_is_not_begun_anew(tmp_path, uninterrupted):
    """Unless that is asked for, nothing of it is touched."""
    before = rows_of(uninterrupted)
    with pytest.raises(ValueError, match=r"holds a run already; .*--resume"):
        go(uninterrupted, steps=14)
    assert rows_of(uninterrupted) == before


def test_resume_without_a_checkpoint_begins(tmp_path, uninterrupted):
    """A run that was killed early leaves lines, but no checkpoint."""
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 3}\n{"st')
    go(tmp_path, resume=True)
    assert_same_run(tmp_path, uninterrupted)


def test_a_finished_run_that_is_resumed_does_nothing(tmp_path, uninterrupted):
    """No update, no line, no checkpoint."""
    shutil.copytree(uninterrupted, tmp_path / "run")
    assert go(tmp_path / "run", resume=True).step == 12
    assert_same_run(tmp_path / "run", uninterrupted)
    assert go(tmp_path / "run", resume=True, steps=3).step == 12


# --- averages


def test_average_is_the_mean(tmp_path):
    """Of each tensor, over the checkpoints, in float32."""
    paths = []
    for step, value in ((1, 1.0), (2, 2.0), (3, 6.0)):
        model = tiny()
        for p in model.parameters():
            p.data.fill_(value)
        optimizer, progress = noam(model), TrainState(step=step)
        paths.append(save_checkpoint(tmp_path, model, optimizer, progress, {}))
    average_checkpoints(paths, tmp_path / "model.safetensors")
    mean = load_file(tmp_path / "model.safetensors")
    assert mean.keys() == tiny().state_dict().keys()
    for tensor in mean.values():
        assert_close(tensor, torch.full_like(tensor, 3.0))
        assert tensor.dtype == torch.float32
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"step-1", "step-2", "step-3", "model.safetensors"}


def test_an_average_is_a_model(tmp_path):
    """It loads where a checkpoint does, and one alone is unchanged."""
    path = saved(tmp_path)
    (tmp_path / "mean").mkdir()
    average_checkpoints([path], tmp_path / "mean/model.safetensors")
    model = tiny(seed=9)
    load_weights(model, tmp_path / "mean")
    assert same(model.state_dict(), tiny().state_dict())


def test_averages_do_not_lose_digits(tmp_path):
    """The mean of twenty is the nearest number to the true one."""
    paths, tensors = [], torch.randn(20, 1000)
    for step, tensor in enumerate(tensors):
        paths.append(tmp_path / f"step-{step}")
        paths[-1].mkdir()
        save_file({"a": tensor}, paths[-1] / "model.safetensors")
    average_checkpoints(paths, tmp_path / "mean")
    mean = load_file(tmp_path / "mean")["a"].double()
    assert_close(mean, tensors.double().mean(0), rtol=2**-24 + 1e-12, atol=0)


def test_averages_of_different_models_are_refused(tmp_path):
    """Other names; the file is not written."""
    paths = [saved(tmp_path, 1), saved(tmp_path, 2, layers=2)]
    with pytest.raises(ValueError, match="step-2: "):
        average_checkpoints(paths, tmp_path / "mean")
    assert not (tmp_path / "mean").exists()


@pytest.mark.parametrize("shape", [(1, 3), (2, 1), (4, 3), (2, 3, 1)])
def test_averages_of_different_sizes_are_refused(tmp_path, shape):
    """Even of those that torch would stretch."""
    paths = []
    for step, size in enumerate(((2, 3), shape), 1):
        paths.append(tmp_path / f"step-{step}")
        paths[-1].mkdir()
        save_file({"a": torch.ones(size)}, paths[-1] / "model.safetensors")
    with pytest.raises(ValueError, match=r"step-2: a .*\(2, 3\)"):
        average_checkpoints(paths, tmp_path / "mean")
    assert not (tmp_path / "mean").exists()


def test_an_average_of_nothing_is_refused(tmp_path):
    """Rather than written as an empty file."""
    with pytest.raises(ValueError, match="checkpoint"):
        average_checkpoints([], tmp_path / "mean")


# --- the journal


def test_the_journal_drops_what_is_to_come_again(tmp_path):
    """Lines after the update from which a run goes on, and a torn one."""
    lines = [f'{{"step": {step}, "loss": 1.5}}\n' for step in (1, 2, 2, 3, 4)]
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(lines) + '{"step": 5, "lo')
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2, 2, 3, 4]
    journal = Journal(tmp_path, step=2)
    journal.write({"step": 3, "loss": 2.5})
    assert file.read_text() == "".join(lines[:3]) + '{"step": 3, "loss": 2.5}\n'
    assert os.listdir(tmp_path) == ["metrics.jsonl"]


@given(cut=st.integers(0, 60))
def test_a_journal_cut_anywhere_can_be_read(tmp_path_factory, cut):
    """Whole lines are kept, and what is added starts a line."""
    folder = tmp_path_factory.mktemp("cut")
    whole = "".join(f'{{"step": {i}, "loss": 3.25}}\n' for i in (1, 2))
    (folder / "metrics.jsonl").write_text(whole[:cut])
    kept = whole[:cut].count("}")
    assert len(read_metrics(folder)) == kept
    Journal(folder, step=9).write({"step": 9})
    assert [row["step"] for row in read_metrics(folder)] == [*[1, 2][:kept], 9]


def test_a_line_is_on_the_disk_before_the_checkpoint_is(tmp_path, monkeypatch):
    """A power cut must not take lines from before the last checkpoint."""
    seen = []

    def look(handle):
        assert os.fstat(handle).st_ino == journal.path.stat().st_ino
        seen.append(journal.path.read_text())

    journal = Journal(tmp_path)
    monkeypatch.setattr(os, "fsync", look)
    journal.write({"step": 1})
    assert seen == ['{"step": 1}\n']


def test_metrics_of_nothing(tmp_path):
    """No file, no lines."""
    assert read_metrics(tmp_path) == []


def test_tensorboard(tmp_path):
    """Every number of the metrics is there as a scalar, step by step."""
    from tensorboard.backend.event_processing.event_accumulator import (
        EventAccumulator,
    )

    go(tmp_path, tensorboard=True, steps=6)
    board = EventAccumulator(str(tmp_path)).Reload()
    rows = read_metrics(tmp_path)
    names = {name for row in rows for name in row} - {"step"}
    assert set(board.Tags()["scalars"]) == names
    for name in ("loss", "valid_nll", "rate"):
        wanted = [(row["step"], row[name]) for row in rows if name in row]
        found = [(e.step, e.value) for e in board.Scalars(name)]
        assert found == [(s, pytest.approx(v, rel=1e-6)) for s, v in wanted]


def test_no_tensorboard_unless_asked(uninterrupted):
    """A run's folder holds metrics and checkpoints."""
    assert set(os.listdir(uninterrupted)) == {"metrics.jsonl", "checkpoints"}


SMI = """#!/bin/sh
echo "0, GPU-1, 37, 16160, 1024, 15136, 550.1, Tesla, 1, Disabled, Disabled, 40"
echo "1, GPU-2, {load}, 16160, 16, 16144, 550.1, T4, 2, Disabled, Disabled, 40"
"""


def nvidia_smi(folder, monkeypatch, text):
    """Put a program of this name on the path, and nothing else."""
    file = folder / "nvidia-smi"
    file.write_text(text)
    file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")


def test_gpu_readings(tmp_path, monkeypatch):
    """Load as a share, memory in MiB, as nvidia-smi tells it."""
    nvidia_smi(tmp_path, monkeypatch, SMI.format(load=100))
    assert gpu_stats() == [
        {"gpu": 0, "load": 0.37, "used": 1024.0, "memory": 16160.0},
        {"gpu": 1, "load": 1.0, "used": 16.0, "memory": 16160.0},
    ]


def test_no_gpu_no_readings(tmp_path, monkeypatch):
    """Without the program there is nothing to read."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_stats() == []


def test_a_gpu_that_will_not_say_ends_no_run(tmp_path, monkeypatch):
    """Errors of nvidia-smi, and numbers it has not, are no errors of ours."""
    nvidia_smi(tmp_path, monkeypatch, "#!/bin/sh\necho NVIDIA-SMI has failed")
    assert gpu_stats() == []
    nvidia_smi(tmp_path, monkeypatch, SMI.format(load="[N/A]"))
    json.dumps(gpu_stats(), allow_nan=False)


def diary(folder, worker=SINGLE, progress_bar=False, **changes):
    """The diary of a run that has counted two updates."""
    progress = TrainState()
    book = training._Diary(
        folder, progress, replace(CONFIG, **changes), worker, progress_bar
    )
    for _ in range(2):
        progress.record_step(torch.tensor([8.0, 4.0]), 4)
    return book


def test_lines_about_gpus(tmp_path, monkeypatch):
    """Where one trains, and there alone."""
    monkeypatch.setattr(training, "gpu_stats", lambda: [{"gpu": 0}])
    cuda = Worker(device=torch.device("cuda"))
    for worker, name in ((cuda, "gpu"), (SINGLE, "cpu")):
        with diary(tmp_path / name, worker, log_every=2) as book:
            book.note(0.5, torch.tensor(3.0))
    (ours,), (theirs,) = (read_metrics(tmp_path / n) for n in ("gpu", "cpu"))
    assert ours["gpus"] == [{"gpu": 0}] and "gpus" not in theirs
    assert (theirs["loss"], theirs["nll"], theirs["gradient"]) == (2.0, 1.0, 3)


def test_only_one_worker_writes(tmp_path, capfd):
    """The others keep a diary without a page."""
    with diary(tmp_path, Worker(1, 2), progress_bar=True, log_every=1) as book:
        book.note(0.5, torch.tensor(3.0))
    assert not os.listdir(tmp_path)
    assert capfd.readouterr() == ("", "")


def test_what_is_shown_where_there_is_no_terminal(tmp_path, capfd):
    """Plain lines instead of a bar; or nothing, if asked."""
    for shown in (True, False):
        with diary(tmp_path, progress_bar=shown, log_every=1) as book:
            book.note(0.5, torch.tensor(3.0))
            book.write({"valid_nll": 1.25, "valid_exact": 0.5})
        out, err = capfd.readouterr()
        assert err == ""
        if shown:
            first, second = out.splitlines()
            assert first.startswith("update 2: loss 2 tokens/s ")
            assert second.startswith("update 2: nll 1.25 exact 0.5 tokens/s")
        else:
            assert out == ""


# --- exact resumption


@pytest.mark.parametrize("stop", [5, 9])
def test_resumed_is_as_if_never_stopped(tmp_path, uninterrupted, stop):
    """In the middle of a window of the metrics, or at an epoch's end."""
    assert len(Batches(PAIRS, 40)) == 9
    go(tmp_path, steps=stop)
    go(tmp_path, resume=True)
    assert_same_run(tmp_path, uninterrupted)


def test_resumed_after_every_update(tmp_path, uninterrupted):
    """Eleven stops, over the end of an epoch."""
    for step in range(1, 13):
        go(tmp_path, resume=True, steps=step)
    assert_same_run(tmp_path, uninterrupted)


def test_a_resume_repairs_the_metrics(tmp_path, uninterrupted):
    """Lines after the checkpoint and a torn one are written again."""
    go(tmp_path, steps=5)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "loss": 99.0, "seconds": 1}\n{"step": 7, "lo')
    go(tmp_path, resume=True)
    assert_same_run(tmp_path, uninterrupted)


def test_time_goes_on(tmp_path):
    """Seconds count the time of both runs, and not that between them."""
    go(tmp_path, steps=2)
    path = list_checkpoints(tmp_path / "checkpoints")[-1] / "training.pt"
    state = torch.load(path, weights_only=True)
    state["progress"]["seconds"] = 1000.0
    torch.save(state, path)
    assert 1000 < go(tmp_path, resume=True, steps=3).seconds < 2000


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


def assert_all_whole(folder):
    """Every checkpoint that is listed can be read, to the end."""
    for path in list_checkpoints(folder / "checkpoints"):
        model = tiny(seed=3)
        progress = load_checkpoint(path, model, noam(model), {})
        assert path.name == f"step-{progress.step}"


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
    training.save_file = halving(training.save_file)
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


# --- disks that are full, losses that are no numbers


def with_small_files(folder, limit, report, changes):
    """Go on with a run where no file may be larger than a limit."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # an error instead
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        go(folder, resume=True, **changes)
        report.send("no error")
    except TrainingError as problem:
        report.send(str(problem))
    except BaseException as problem:
        report.send(f"{type(problem).__name__}: {problem}")


def message_with_small_files(folder, limit, **changes):
    """What a run says when a file becomes too large."""
    ours, theirs = NURSERY.Pipe(duplex=False)
    assert at_once(with_small_files, folder, limit, theirs, changes) == 0
    message = ours.recv()
    ours.close()
    theirs.close()
    return message


@pytest.mark.parametrize(
    "file",
    ["model.safetensors", "training.pt"],
)
@pytest.mark.parametrize("good", [True, False])
def test_a_full_disk(tmp_path, uninterrupted, file, good):
    """The reason, the last good checkpoint, no draft; then it goes on."""
    folder = tmp_path / "run"
    if good:
        go(folder, steps=5)
    last = list_checkpoints(uninterrupted / "checkpoints")[-1]
    sizes = {path.name: path.stat().st_size for path in last.iterdir()}
    assert sizes["training.pt"] > 2 * sizes["model.safetensors"]
    message = message_with_small_files(folder, sizes[file] - 4000)
    where = folder / "checkpoints"
    assert message.startswith(f"{where}/step-{6 if good else 2} could not be")
    assert os.strerror(errno.EFBIG) in message
    name = f"{where}/step-5" if good else "none"
    assert f"The last good checkpoint is {name};" in message
    assert "--resume" in message and "\n" not in message
    kept = ["step-4", "step-5"] if good else []
    assert sorted(os.listdir(where)) == kept
    assert_all_whole(folder)
    go(folder, resume=True)
    assert_same_run(folder, uninterrupted)


def save_with_small_files(folder, d_ff, report):
    """Try to save a checkpoint where files may have ever more bytes."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    model = tiny(d_ff=d_ff)
    optimizer = noam(model)
    train_step(ModelWithLoss(model), optimizer, a_batch())
    whole = save_checkpoint(folder, model, optimizer, TrainState(1), {})
    size = (whole / "training.pt").stat().st_size
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    messages = []
    for limit in np.linspace(1000, size - 1000, 40, dtype=int).tolist():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))
        try:
            save_checkpoint(folder, model, optimizer, TrainState(2), {})
        except TrainingError as problem:
            messages.append(str(problem))
    report.send(messages)


@pytest.mark.parametrize("d_ff", [16, 2048])
def test_the_reason_is_the_disks(tmp_path, d_ff):
    """Wherever the disk is full, its words are told, not torch's."""
    ours, theirs = NURSERY.Pipe(duplex=False)
    assert at_once(save_with_small_files, tmp_path, d_ff, theirs) == 0
    messages = ours.recv()
    ours.close()
    theirs.close()
    assert len(messages) == 40
    assert all(os.strerror(errno.EFBIG) in message for message in messages)
    assert os.listdir(tmp_path) == ["step-1"]


def test_a_disk_that_is_full_when_a_line_is_written(tmp_path, uninterrupted):
    """The file, the reason and the advice; the torn line is repaired."""
    folder = tmp_path / "run"
    go(folder, steps=5, checkpoint_every=5)
    size = (folder / "metrics.jsonl").stat().st_size
    message = message_with_small_files(folder, size + 30, checkpoint_every=99)
    assert message.startswith(f"{folder}/metrics.jsonl")
    assert os.strerror(errno.EFBIG) in message and "--resume" in message
    go(folder, resume=True)
    assert_same_run(folder, uninterrupted)


def test_a_checkpoint_folder_that_cannot_be(tmp_path):
    """Errors before the first byte are told in the same way."""
    (tmp_path / "checkpoints").write_text("a file")
    with pytest.raises(TrainingError, match=r"step-2 could not be .* is none"):
        go(tmp_path)


def poisoned(model, monkeypatch, step):
    """A model that gets a weight without a value before an update."""
    real = training.seed_step

    def poison(seed, now, rank):
        if now == step:
            next(model.decoder.parameters()).data[0, 0] = math.nan
        real(seed, now, rank)

    monkeypatch.setattr(training, "seed_step", poison)
    return model


def test_a_loss_that_is_no_number_ends_the_run(tmp_path, monkeypatch):
    """With the batch to look at, and advice; the last checkpoint is good."""
    model = poisoned(tiny(), monkeypatch, step=4)
    with pytest.raises(TrainingError) as problem:
        go(tmp_path, model=model, log_every=1, validate_every=1)
    file = tmp_path / "bad-batch-5-rank-0.safetensors"
    message = str(problem.value)
    assert message.startswith("update 5: the loss is nan")
    assert str(file) in message and "factor" in message and "clip" in message
    wanted = Batches(PAIRS, 40, accumulate=2)[4]
    found = load_file(file)
    assert found.keys() == {"src.0", "tgt.0", "src.1", "tgt.1"}
    for i, part in enumerate(wanted):
        assert torch.equal(found[f"src.{i}"], part.src)
        assert torch.equal(found[f"tgt.{i}"], part.tgt)
    assert max(row["step"] for row in rows_of(tmp_path)) == 4  # strict JSON
    assert_all_whole(tmp_path)
    assert list_checkpoints(tmp_path / "checkpoints")[-1].name == "step-4"
    for tensor in weights_of(tmp_path).values():
        assert torch.isfinite(tensor).all()
    monkeypatch.undo()
    go(tmp_path, resume=True, log_every=1, validate_every=1)
    go(tmp_path / "whole", log_every=1, validate_every=1)
    assert_same_run(tmp_path, tmp_path / "whole")


def test_a_bad_batch_that_cannot_be_kept(tmp_path, monkeypatch):
    """What is wrong with the loss comes first."""
    (tmp_path / "bad-batch-1-rank-0.safetensors").mkdir()
    with pytest.raises(
        TrainingError, match=r"^update 1: the loss is nan"
    ) as no:
        go(tmp_path, model=poisoned(tiny(), monkeypatch, step=0))
    assert "could not be saved" in str(no.value)
    assert "factor" in str(no.value) and "\n" not in str(no.value)


def test_a_validation_that_is_no_number(tmp_path, monkeypatch):
    """Ends the run before the checkpoint, and blames no batch."""
    model = tiny()
    real = training.validate

    def worse(*args):
        next(model.decoder.parameters()).data[0, 0] = math.nan
        return real(*args)

    monkeypatch.setattr(training, "validate", worse)
    with pytest.raises(TrainingError, match=r"^update 4: .*validation is nan"):
        go(tmp_path, model=model)
    assert not list(tmp_path.glob("bad-batch*"))
    assert list_checkpoints(tmp_path / "checkpoints")[-1].name == "step-2"
    assert [row["step"] for row in rows_of(tmp_path)] == [3]


@pytest.mark.parametrize(
    ("validate_every", "shown"),
    [(1, r"^update 1: .*validation is"), (9, r"^update 2: the loss is")],
)
def test_a_run_that_explodes(tmp_path, validate_every, shown):
    """Wherever it shows, no line and no checkpoint is without numbers.

    The first update moves every weight by about 1e28, whatever the processor
    rounds; no product of two such numbers is finite in float32.
    """
    with pytest.raises(TrainingError, match=rf"{shown} (nan|inf).*factor"):
        go(
            tmp_path,
            factor=1e30,
            log_every=1,
            validate_every=validate_every,
            checkpoint_every=1,
        )
    rows_of(tmp_path)  # strict JSON
    for path in list_checkpoints(tmp_path / "checkpoints"):
        for tensor in load_file(path / "model.safetensors").values():
            assert torch.isfinite(tensor).all()


def failing(problem):
    """An update that does not succeed."""

    def train_step(*_):
        raise problem

    return train_step


def test_no_memory_left(tmp_path, monkeypatch):
    """The advice is to cut the batch into more parts."""
    problem = torch.OutOfMemoryError("CUDA out of memory")
    monkeypatch.setattr(training, "train_step", failing(problem))
    (first, _) = Batches(PAIRS, 40, accumulate=2)[0]
    with pytest.raises(TrainingError) as told:
        go(tmp_path)
    message = str(told.value)
    assert message.startswith("update 1: no memory left on cpu")
    assert str(tuple(first.tgt.shape)) in message
    assert "--resume" in message and "accumulate" in message


def test_lost_contact(tmp_path):
    """Only among several workers, and only if it looks like it."""
    gloo = RuntimeError("[../gloo/transport/tcp/pair.cc] Connection closed")
    nccl = torch.distributed.DistBackendError("NCCL error")
    other = RuntimeError("shapes do not fit")
    two = Worker(1, 2)
    for problem, worker, told in (
        (gloo, two, "update 8: worker 1 of 2 lost contact"),
        (nccl, two, "update 8: worker 1 of 2 lost contact"),
        (gloo, SINGLE, None),
        (other, two, None),
    ):
        with (
            pytest.raises(RuntimeError) as seen,
            training._explained(
                tmp_path, TrainState(step=7), a_batch(), worker
            ),
        ):
            raise problem
        if told:
            assert isinstance(seen.value, TrainingError)
            assert str(seen.value).startswith(told)
        else:
            assert seen.value is problem


def test_bugs_are_not_explained_away(tmp_path, monkeypatch):
    """What nobody expected comes through as it is."""
    monkeypatch.setattr(training, "train_step", failing(RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match=r"^a bug$"):
        go(tmp_path)
