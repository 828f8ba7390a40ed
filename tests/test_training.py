"""Training: right sums, exact resumption, and nothing lost."""

import contextlib
import math
import pickle
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from tests.helpers import ListPairs
from tests.runs import (
    CONFIG,
    PAIRS,
    VALID,
    Deaf,
    a_batch,
    assert_same_run,
    go,
    noam,
    same,
    tiny,
    weights_of,
)
from transformer_annotated import training
from transformer_annotated.batching import Batch, Batches, collate
from transformer_annotated.distributed import SINGLE, Worker
from transformer_annotated.loss import label_smoothed_cross_entropy
from transformer_annotated.model import shift_right
from transformer_annotated.optimizer import NoamOptimizer, noam_rate
from transformer_annotated.training import (
    ModelWithLoss,
    TrainingConfig,
    TrainState,
    seed_step,
    train,
    train_step,
    training_batches,
    validate,
)
from transformer_annotated.workshop.checkpoints import list_checkpoints
from transformer_annotated.workshop.checks import TrainingError
from transformer_annotated.workshop.fused_loss import linear_cross_entropy
from transformer_annotated.workshop.journal import read_metrics

pytestmark = pytest.mark.usefixtures("one_thread")


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
        with pytest.raises(ValueError, match=f"^{name}: 0, expected at least"):
            TrainingConfig(**{name: 0})
    else:
        assert getattr(TrainingConfig(**{name: 0}), name) == 0


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("steps", 1.5, "steps: 1.5, expected an int"),
        ("label_smoothing", 1.0, "label_smoothing: 1.0, expected 0 <= "),
        ("precision", "fp16", "precision: 'fp16', expected 'auto', 'bf16' or"),
        ("precision", 16, "precision: 16, expected a str"),
        ("compile", 1, "compile: 1, expected True or"),
        ("tensorboard", "yes", "tensorboard: 'yes', expected True or"),
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
    assert_close(sums[:2] / 18, known.detach().float().expand(2))
    assert sums[2] == 18
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
    wanted = [known.smoothed, known.nll, known.tokens]
    assert_close(sums, torch.stack([x.float() for x in wanted]))


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
        history.append((progress.best_nll, progress.bad_validations))
    assert history == [
        (3.0, 0),
        (2.0, 0),
        (2.0, 1),
        (1.5, 0),
        (1.5, 1),
        (1.5, 2),
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
    progress.record_step(torch.tensor([6.0, 4.0, 2.0]), 2)
    progress.record_step(torch.tensor([1.0, 2.0, 3.0]), 3)
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
        number
        for e in (0, 1)
        for number in Batches(PAIRS, 40, 0, e).update_tokens
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
        tmp_path, validate_every=1, patience=2, checkpoint_every=1, keep=1
    )
    assert (progress.step, progress.bad_validations) == (4, 2)
    kept = [path.name for path in list_checkpoints(tmp_path / "checkpoints")]
    assert kept == ["step-4"]
    assert go(tmp_path, resume=True, patience=2).step == 4


def test_lines_about_gpus(tmp_path, monkeypatch):
    """Where one trains, and there alone."""
    monkeypatch.setattr(training, "gpu_stats", lambda: [{"gpu": 0}])
    run = training._Run(
        tiny(), PAIRS, replace(CONFIG, log_every=1), tmp_path, SINGLE
    )
    with run.begin(False, None, progress_bar=False) as (state, report):
        for device in ("cpu", "cuda"):
            monkeypatch.setattr(
                training,
                "train_step",
                lambda *_: (torch.tensor([8.0, 4.0, 2.0]), 3),
            )
            run.worker = Worker(device=torch.device(device))
            run.update(a_batch(), state, report)
    ours, theirs = read_metrics(tmp_path)
    assert "gpus" not in ours and theirs["gpus"] == [{"gpu": 0}]
    assert ours["loss"] == 2 * ours["nll"] and ours["gradient"] == 3


@pytest.mark.parametrize("rank", [0, 1])
def test_only_the_first_worker_writes(tmp_path, monkeypatch, rank, capfd):
    """Checkpoints, metrics, and what is to be done at the beginning."""
    monkeypatch.setattr(training, "wrap_ddp", lambda learner, *_: learner)
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
    assert progress.best_nll == math.inf
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


class Recalling(ModelWithLoss):
    """A loss of its own: the source again, every other token of it."""

    def forward(self, src, tgt, with_correct=False):
        """Ask the encoder for some of what it reads."""
        asked = torch.where(torch.arange(src.size(1)) % 2 == 0, src, 0)
        return linear_cross_entropy(
            self.model.encode(src),
            self.model.embeddings.weight,
            asked,
            self.epsilon,
            with_correct=with_correct,
        )


def test_a_loss_of_its_own(tmp_path):
    """It is what is trained, measured per label, validated and resumed."""
    config = replace(CONFIG, steps=4, log_every=1, validate_every=4)
    ends = []
    for folder, pauses in ((tmp_path / "a", [4]), (tmp_path / "b", [2, 4])):
        for steps in pauses:
            model = tiny(dropout=0.0)
            train(
                *(model, PAIRS, VALID, replace(config, steps=steps), folder),
                resume=True,
                progress_bar=False,
                learner=Recalling,
            )
        ends.append(model.state_dict())
        rows = read_metrics(folder)
    assert_close(ends[0], ends[1])
    first = rows[0]
    assert first["loss"] == pytest.approx(math.log(11), rel=0.5)
    assert first["perplexity"] == pytest.approx(math.exp(first["nll"]))
    learner = Recalling(model.eval())
    asked = [s for source in VALID.sources for s in [*source, 2][::2]]
    [valid] = [row for row in rows if "valid_nll" in row]
    with torch.no_grad():
        losses = [
            learner(collate([source]), None, with_correct=True)
            for source in VALID.sources
        ]
    assert sum(int(loss.tokens) for loss in losses) == len(asked)
    nll = sum(float(loss.nll) for loss in losses) / len(asked)
    assert valid["valid_nll"] == pytest.approx(nll, rel=1e-4)
    wrong = sum(int((~loss.correct).sum()) for loss in losses)
    assert valid["valid_accuracy"] == pytest.approx(1 - wrong / len(asked))
