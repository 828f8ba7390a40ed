"""GPT: the reference's numbers, caches, one pipeline, sampling, experts."""

import math

import pytest
import torch
from torch.testing import assert_close
from transformers.models.switch_transformers.modeling_switch_transformers import (  # noqa: E501
    load_balancing_loss_func,
)

from experiments.finetune import MAKERS, examples, is_sentence
from experiments.gpt import draw, minimal_pairs
from experiments.parity import compare, gpt2_pair, switch_pair
from tests.helpers import ListPairs
from transformer_annotated.after.generation import (
    next_token_probabilities,
    sample,
)
from transformer_annotated.after.gpt import (
    GPT,
    KIND,
    TASKS,
    GPTConfig,
    GPTDecoder,
    log_likelihood,
    task_inputs,
)
from transformer_annotated.after.switch import SwitchFeedForward
from transformer_annotated.batching import collate
from transformer_annotated.charts.gpt import against_truth, scale_chart
from transformer_annotated.charts.looking import attention_explorer
from transformer_annotated.decoding import beam_search, greedy_decode
from transformer_annotated.layers import FeedForward
from transformer_annotated.text import BOS, EOS, PAD, UNK
from transformer_annotated.training import TrainingConfig, train
from transformer_annotated.workshop.checkpoints import list_checkpoints
from transformer_annotated.workshop.files import load_result
from transformer_annotated.workshop.likelihood import log_probability
from transformer_annotated.workshop.models import kind_of
from transformer_annotated.workshop.recipe import read_recipe, run_recipe
from transformer_annotated.workshop.translator import Translator

SMALL = GPTConfig(
    50,
    layers=2,
    d_model=32,
    d_ff=64,
    heads=4,
    learned_positions=40,
    dropout=0.0,
)
PUBLISHED = {
    "GPT-1": (GPTConfig(40_478, learned_positions=512, pre_norm=False), 116.5),
    "GPT-2": (GPTConfig(50_257, 48, 1600, 6400, 25), 1557.6),
    "GPT-3": (
        GPTConfig(50_257, 96, 12_288, 49_152, 96, learned_positions=2048),
        174_604.3,
    ),
}


def a_model(seed=0):
    """A model in double precision, ready for use."""
    torch.manual_seed(seed)
    return GPT(SMALL).double().eval()


def pairs():
    """Sources (3, 6), one padded, and targets (3, 5)."""
    torch.manual_seed(1)
    src = collate([[5, 6, 7, 8, 9], [10, 11], [12, 13, 14, 15]])
    tgt = torch.randint(4, 50, (3, 5))
    tgt[:, 0] = BOS
    return src, tgt


# --- the reference


def test_logits_are_those_of_gpt2():
    """With copied weights, to a hundred-thousandth; in double, to 1e-12."""
    [row] = compare("GPT")
    assert row["largest"] > 1 and row["difference"] < row["bound"] == 1e-5
    torch.manual_seed(0)
    ours, theirs = gpt2_pair()
    ids = torch.randint(0, 50, (4, 17))
    with torch.no_grad():
        assert_close(
            ours.double()(ids), theirs.double()(ids).logits, atol=1e-12, rtol=0
        )


@pytest.mark.parametrize("capacity", [64, 3])
def test_experts_are_those_of_switch_transformers(capacity):
    """Routes, outputs and the balancing loss, with tokens to spare or not."""
    torch.manual_seed(0)
    ours, theirs = switch_pair(capacity)
    x = torch.randn(5, 11, 16)
    with torch.no_grad():
        assert_close(ours(x), theirs(x), atol=1e-6, rtol=0)
        visits, gate, balance = ours.route(x)
        index, probability, logits = theirs.router(x)
        assert torch.equal(visits, index.bool())
        assert_close(gate, probability[..., 0])
        p = logits.softmax(-1)
        assert_close(balance, load_balancing_loss_func(p, p.argmax(-1)))
    assert (visits.sum() < 55) == (capacity == 3)


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_by_formula(name):
    """GPT-1, 2 and 3 on the meta device, in millions."""
    c, millions = PUBLISHED[name]
    with torch.device("meta"):
        count = sum(p.numel() for p in GPT(c).parameters())
    d = c.d_model
    embedded = (c.vocab_size + c.learned_positions) * d
    assert count == c.layers * (12 * d**2 + 13 * d) + embedded + (
        2 * d * c.pre_norm
    )
    assert round(count / 1e6, 1) == millions


# --- the model


def test_nothing_leaks_from_the_future():
    """Later tokens change no earlier answer."""
    model, ids = a_model(), torch.randint(4, 50, (2, 9))
    changed = ids.clone()
    changed[:, 5:] = 7
    assert torch.equal(model(ids)[:, :5], model(changed)[:, :5])


def test_a_target_follows_its_source_directly():
    """However long the other sources and targets of the batch are."""
    model, (src, tgt) = a_model(), pairs()
    together = model.decode(tgt, model.encode(src), src)
    for i, row in enumerate(src):
        alone = row[row != PAD][None]
        text = torch.cat([alone, tgt[i : i + 1]], 1)
        one = model.hidden(model.embeddings(text))[0, alone.size(1) :]
        assert_close(together[i], one)


def test_cached_is_at_once():
    """Token by token, with reordered rows, as in one pass."""
    model, (src, tgt) = a_model(), pairs()
    decoder = GPTDecoder(model, src)
    for t in range(3):
        decoder.hidden(tgt[:, t])
    rows = torch.tensor([2, 0, 1, 1])
    decoder.reorder(rows)
    src, tgt = src[rows], tgt[rows]
    at_once = model.decode(tgt, model.encode(src), src)
    for t in (3, 4):
        assert_close(decoder.hidden(tgt[:, t]), at_once[:, t])


def test_likelihood_is_the_sum_over_labels():
    """Padding adds nothing; a beam's log-probability is the same."""
    model, (src, _) = a_model(), pairs()
    tgt = collate([[20, 21, 22], [23], [24, 25]], start=True)
    found = log_likelihood(model, src, tgt)
    for i, row in enumerate(tgt):
        real = row[row != PAD][None]
        one = log_likelihood(model, src[i][src[i] != PAD][None], real)
        assert_close(found[i : i + 1], one)
    [best, *_] = beam_search(model.float(), src, beam=3, extra_length=2)[0]
    tgt = collate([best.tokens], start=True)
    again = log_likelihood(model, src[:1], tgt)
    # padding and start symbol never follow, so their probability is divided
    assert again.item() <= best.log_prob + 1e-4


def test_the_end_follows_when_positions_are_used_up():
    """Rather than an index that is out of range."""
    model, (src, _) = a_model(), pairs()
    assert sample(model, src[1:2, :3], [20] * 36) == [[20] * 36]
    for answers in (
        greedy_decode(model, src, extra_length=500),
        [best.tokens for best, *_ in beam_search(model, src, extra_length=500)],
        sample(model, src, max_length=500),
    ):
        for row, answer in zip(src, answers, strict=True):
            assert len(answer) + int((row != PAD).sum()) <= 40


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: a_model()(torch.full((1, 41), 5)),
            "length: 41 positions, but 40 were learned",
        ),
        (
            lambda: GPTDecoder(a_model(), torch.full((1, 41), 5)),
            "length: 41 positions, but 40 were learned",
        ),
        (
            lambda: sample(a_model(), torch.full((2, 3), 5), [5] * 37),
            "prompt: 37 tokens after a source of 3, but 40 positions",
        ),
        (
            lambda: GPTConfig(50, learned_positions=0),
            "learned_positions: 0, expected at least 1",
        ),
        (
            lambda: GPTConfig(50, activation="gelu-tanh"),
            "did you mean 'gelu_tanh'",
        ),
        (
            lambda: next_token_probabilities(torch.zeros(1, 5), 0.0),
            "temperature: 0.0, expected more than 0",
        ),
        (
            lambda: next_token_probabilities(torch.zeros(1, 5), top_p=1.5),
            "top_p: 1.5, expected 0 < top_p <= 1",
        ),
        (
            lambda: next_token_probabilities(torch.zeros(1, 5), top_k=-1),
            "top_k: -1, expected at least 0",
        ),
        (lambda: SwitchFeedForward(8, 8, 0), "experts: 0, expected at least 1"),
        (
            lambda: task_inputs("entailement", [5], [6]),
            "did you mean 'entailment'",
        ),
        (
            lambda: read_recipe("gpt-grammar", ["model.kind=gtp"]),
            "unknown kind, 'gtp'; did you mean 'gpt'",
        ),
    ],
)
def test_bad_input(call, message):
    """One line that says what is wrong."""
    with pytest.raises(ValueError, match=message.replace("?", ".")):
        call()


# --- one pipeline


TINY = (
    "layers=1 d_model=16 d_ff=32 heads=2 steps=12 batch_tokens=400 "
    "train_size=200 valid_size=20 log_every=4 validate_every=6 "
    "checkpoint_every=6 warmup=4 depth=1"
).split()


@pytest.fixture(scope="module")
def run(tmp_path_factory, one_thread):
    """A small run, stopped after six updates and resumed."""
    folder = tmp_path_factory.mktemp("gpt")
    run_recipe(
        read_recipe("gpt-grammar", [*TINY, "steps=6"]),
        folder,
        progress_bar=False,
    )
    run_recipe(
        read_recipe("gpt-grammar", TINY),
        folder,
        resume=True,
        progress_bar=False,
    )
    return folder


def test_resumed_is_uninterrupted(run, tmp_path):
    """The same weights as in one go."""
    run_recipe(read_recipe("gpt-grammar", TINY), tmp_path, progress_bar=False)
    ours, theirs = (Translator.load(x, "cpu").model for x in (run, tmp_path))
    assert kind_of(ours.config) is KIND
    assert [p.name for p in list_checkpoints(run / "checkpoints")]
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_it_translates_and_explains(run):
    """Text to text; each target's weights sum to one over both sides."""
    translator = Translator.load(run, device="cpu")
    texts = ["der König schläft .", "er lacht heute nicht ."]
    assert len(translator.translate(texts, beam=2)) == 2
    maps = translator.explain(texts[0], target="the king sleeps .")
    s, t = len(maps.source_tokens), len(maps.input_tokens)
    assert maps.encoder_attentions.shape == (1, 2, s, s)
    assert maps.decoder_attentions.shape == (1, 2, t, t)
    assert maps.cross_attentions.shape == (1, 2, t, s)
    total = maps.decoder_attentions.sum(-1) + maps.cross_attentions.sum(-1)
    assert_close(total, torch.ones_like(total))
    attention_explorer(maps).to_dict()


def test_a_language_model_is_trained_by_the_trainer(tmp_path):
    """On pairs whose sources are empty, and the loss falls."""
    texts = [[5 + i % 3, 8, 9 + i % 2] for i in range(60)]
    model = GPT(SMALL)
    src, tgt = torch.full((60, 1), EOS), collate(texts, start=True)
    with torch.no_grad():
        before = log_likelihood(model, src, tgt).mean()
    config = TrainingConfig(30, 100, warmup=10, label_smoothing=0.0)
    empty = ListPairs([[] for _ in texts], texts)
    train(model, empty, None, config, tmp_path, progress_bar=False)
    with torch.no_grad():
        after = log_likelihood(model.eval(), src, tgt).mean()
    assert after > before + 2
    assert after < -math.log(6) + 0.1  # the entropy of six equal texts


# --- sampling


FOUR = torch.tensor([[0.4, 0.1, 0.3, 0.2]], dtype=torch.float64).log()


@pytest.mark.parametrize(
    ("way", "known"),
    [
        ({}, [0.4, 0.1, 0.3, 0.2]),
        ({"top_k": 2}, [4 / 7, 0, 3 / 7, 0]),
        ({"top_k": 9}, [0.4, 0.1, 0.3, 0.2]),
        ({"top_p": 0.35}, [1, 0, 0, 0]),
        ({"top_p": 0.8}, [4 / 9, 0, 3 / 9, 2 / 9]),
        ({"temperature": 0.5}, [16 / 30, 1 / 30, 9 / 30, 4 / 30]),
        ({"temperature": 1e-3}, [1, 0, 0, 0]),
        ({"temperature": 0.5, "top_k": 2, "top_p": 0.9}, [0.64, 0, 0.36, 0]),
    ],
)
def test_probabilities_by_hand(way, known):
    """The most probable ones stay, in proportion."""
    found = next_token_probabilities(FOUR, **way)
    assert_close(found, torch.tensor([known], dtype=torch.float64))


def test_samples_come_as_often_as_they_should():
    """Whole texts, 4,000 times, against their exact probability."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(6, 1, 8, 16, 1, learned_positions=8, dropout=0.0))
    model.eval()
    src = torch.full((4000, 1), EOS)
    drawn = sample(model, src, max_length=2, seed=3)
    assert drawn == sample(model, src, max_length=2, seed=3)
    assert drawn != sample(model, src, max_length=2, seed=4)
    decoder = GPTDecoder(model, src[:1])
    p = decoder.next_logits(torch.tensor([BOS])).softmax(-1)[0]
    for token in (UNK, 4, 5):
        n = sum(text[:1] == [token] for text in drawn)
        error = (p[token] * (1 - p[token]) / 4000).sqrt().item()
        assert abs(n / 4000 - p[token].item()) < 5 * error
    prompted = sample(model, src[:20], prompt=[4, 5], max_length=6)
    assert all(text[:2] == [4, 5] for text in prompted)


# --- tasks, experts, charts, results


def test_formats():
    """What GPT-1 reads for each of its four tasks."""
    a, b, c = [10, 11], [12], [13]
    one = [BOS, 10, 11, UNK, 12, EOS]
    assert task_inputs("classification", a) == [[BOS, 10, 11, EOS]]
    assert task_inputs("entailment", a, b) == [one]
    assert task_inputs("similarity", a, b) == [one, [BOS, 12, UNK, 10, 11, EOS]]
    assert task_inputs("choice", a, b, c) == [one, [BOS, 10, 11, UNK, 13, EOS]]


@pytest.mark.parametrize("task", TASKS)
def test_labels_are_what_the_grammar_says(task):
    """Both labels come up, and what should be a sentence is one."""
    assert set(MAKERS) == set(TASKS)
    some = examples(task, 60, draw(9000, 3), 0)
    assert len({label for _, label in some}) == (3 if task == "choice" else 2)
    for texts, label in some:
        if task == "classification":
            assert is_sentence(texts[0]) == bool(label)
        elif task == "choice":
            ends = [is_sentence(f"{texts[0]} {end}") for end in texts[1:]]
            assert ends.index(True) == label and sum(ends) == 1
        else:
            assert all(map(is_sentence, texts))


def test_minimal_pairs_differ_in_one_word():
    """One is a sentence, the other is none."""
    for right, wrong in minimal_pairs(draw(100, 4)):
        assert log_probability(right) > -math.inf == log_probability(wrong)
        words = zip(right.split(), wrong.split(), strict=True)
        assert sum(a != b for a, b in words) == 1


def test_one_expert_is_a_feed_forward_network():
    """Of probability one, whatever the router says."""
    switch, x = SwitchFeedForward(8, 16, 1), torch.randn(2, 5, 8)
    assert_close(switch(x), switch.experts[0](x))
    assert isinstance(switch.experts[0], FeedForward)
    assert switch.balance == 1


def test_balance_is_one_if_even_and_the_number_of_experts_if_not():
    """Equations 4 to 6 of the Switch paper, at both ends."""
    switch = SwitchFeedForward(4, 8, 4)
    with torch.no_grad():
        switch.router.weight.copy_(100 * torch.eye(4))
        even = torch.eye(4).repeat(1, 2, 1)
        assert_close(switch.route(even)[2], torch.tensor(1.0))
        uneven = torch.eye(4)[:1].expand(1, 8, 4)
        assert_close(switch.route(uneven)[2], torch.tensor(4.0))


def test_gradients_reach_the_router():
    """Through the probability of the choice, and through the balance."""
    switch, x = SwitchFeedForward(8, 16, 4), torch.randn(2, 5, 8)
    for loss in (lambda: switch(x).square().sum(), lambda: switch.balance):
        switch.zero_grad()
        switch(x)
        loss().backward()
        assert switch.router.weight.grad.abs().sum() > 0


def test_charts():
    """They say what they are given."""
    points = [
        {"updates": n, "grammar": -9.0, "model": -9.5 - 1 / n, "sentence": "x"}
        for n in (1, 2)
    ]
    assert against_truth(points).to_dict()["params"]
    lines = [
        {
            "tokens": n,
            "gap": 1 / n,
            "low": 0.9 / n,
            "high": 1.1 / n,
            "parameters": "10",
        }
        for n in (1, 2, 4)
    ]
    assert scale_chart(lines).to_dict()["layer"]


def test_no_model_is_better_than_the_truth():
    """The gap is a divergence: not negative, but for its error."""
    found = load_result("gpt")
    for row in found["rows"]:
        assert row["gap"] > -5 * row["error"]
    assert len({row["seed"] for row in found["rows"]}) >= 3
