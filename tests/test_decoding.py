"""Searches find what they should, and nothing else changes what they find."""

import math
from itertools import pairwise, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from transformer_annotated import decoding
from transformer_annotated.decoding import (
    Hypothesis,
    beam_search,
    greedy_decode,
    length_penalty,
)
from transformer_annotated.model import Transformer, TransformerConfig
from transformer_annotated.text import BOS, EOS, PAD
from transformer_annotated.workshop.incremental import IncrementalDecoder

WORDS = (3, 4, 5)
quick = settings(max_examples=10, deadline=None)
seeds = st.integers(0, 10**6)


def make_model(seed=0, vocab_size=6, scale=2.5, **changes):
    """A small model with random weights, and opinions about what follows."""
    torch.manual_seed(seed)
    sizes = {"layers": 1, "d_model": 16, "d_ff": 32, "heads": 2} | changes
    model = Transformer(TransformerConfig(vocab_size, **sizes)).double()
    for parameter in model.parameters():
        parameter.data *= scale
    return model.eval()


def padded(sources):
    """Ids (B, S) of lists of ids."""
    rows = [torch.tensor(source) for source in sources]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)


SOURCES = [[4, 5, 3, EOS], [5, 4, EOS], [3, EOS], [5, 5, 3, 4, 4, EOS]]


@torch.no_grad()
def next_log_probabilities(model, source, starts):
    """Of each word after each start (all of one length), without a cache."""
    src = torch.tensor([source]).expand(len(starts), -1)
    tgt = torch.tensor([[BOS, *start] for start in starts])
    logits = model(src, tgt)[:, -1]
    logits[:, [PAD, BOS]] = -math.inf
    return logits.log_softmax(-1).tolist()


def plain_beam_search(
    model, source, beam, alpha=0.6, offset=5, extra_length=50
):
    """All that a beam meets until it is empty, the best first; no shortcut."""
    live, found, room, limit = [(0.0, ())], [], beam, len(source) + extra_length
    while live:
        rows = next_log_probabilities(model, source, [w for _, w in live])
        candidates = [
            (score + row[word], (*words, word))
            for (score, words), row in zip(live, rows, strict=True)
            for word in (range(2, len(row)) if len(words) < limit else [EOS])
        ]
        kept = sorted(candidates, reverse=True)[:room]
        live = [(score, words) for score, words in kept if words[-1] != EOS]
        room -= len(kept) - len(live)
        for score, words in kept:
            if words[-1] == EOS:
                penalty = ((offset + len(words)) / (offset + 1)) ** alpha
                found.append((list(words[:-1]), score / penalty, score))
    return sorted(found, key=lambda hypothesis: -hypothesis[1])


def every_sentence(model, source, limit, alpha=0.6, offset=5):
    """All sentences of at most so many words, the best first."""
    sure, found = {(): 0.0}, []
    for length in range(limit + 1):
        starts = list(product(WORDS, repeat=length))
        rows = next_log_probabilities(model, source, starts)
        for start, row in zip(starts, rows, strict=True):
            score = sure[start] + row[EOS]
            penalty = ((offset + length + 1) / (offset + 1)) ** alpha
            found.append((list(start), score / penalty, score))
            sure |= {(*start, word): sure[start] + row[word] for word in WORDS}
    return sorted(found, key=lambda hypothesis: -hypothesis[1])


def values(hypotheses):
    """Words, scores and log-probabilities of hypotheses."""
    return [(h.tokens, h.score, h.log_prob) for h in hypotheses]


def assert_same(hypotheses, expected):
    """The same words in the same order, with the same scores."""
    assert [h.tokens for h in hypotheses] == [tokens for tokens, *_ in expected]
    for hypothesis, (_, score, log_prob) in zip(
        hypotheses, expected, strict=True
    ):
        assert math.isclose(hypothesis.score, score, abs_tol=1e-4)
        assert math.isclose(hypothesis.log_prob, log_prob, abs_tol=1e-4)


@quick
@given(seeds)
def test_a_beam_of_one_is_greedy(seed):
    """One hypothesis has no choice but the most probable word."""
    model, src = make_model(seed), padded(SOURCES)
    narrow = beam_search(model, src, beam=1, extra_length=4)
    assert [found.tokens for (found,) in narrow] == greedy_decode(model, src, 4)


@quick
@given(seeds)
def test_greedy_takes_the_most_probable_word(seed):
    """Word by word without a cache, until the end or the limit."""
    model, expected = make_model(seed), []
    for source in SOURCES:
        words = []
        while len(words) < len(source) + 4:
            (row,) = next_log_probabilities(model, source, [words])
            word = max(range(len(row)), key=row.__getitem__)
            if word == EOS:
                break
            words.append(word)
        expected.append(words)
    assert greedy_decode(model, padded(SOURCES), extra_length=4) == expected


@quick
@given(seeds, st.sampled_from([0.0, 0.6, 1.0]), st.sampled_from([0, 5]))
def test_a_large_beam_is_exhaustive_search(seed, alpha, offset):
    """Where nothing is dropped, the best sentences of all are found."""
    model = make_model(seed)
    settings = {"alpha": alpha, "offset": offset}
    found = beam_search(
        model,
        padded(SOURCES[:3]),
        beam=400,
        n_best=5,
        extra_length=0,
        **settings,
    )
    for source, hypotheses in zip(SOURCES[:3], found, strict=True):
        best = every_sentence(model, source, len(source), **settings)[:5]
        assert_same(hypotheses, best)


@quick
@given(seeds, st.integers(1, 5), st.sampled_from([0.0, 0.6, 1.0]), st.data())
def test_search_equals_a_plain_one(seed, beam, alpha, data):
    """Caches, batches and early stopping change nothing."""
    offset = data.draw(st.sampled_from([0, 5]))
    n_best = data.draw(st.integers(1, beam))
    model = make_model(seed)
    settings = {
        "beam": beam,
        "alpha": alpha,
        "offset": offset,
        "extra_length": 4,
    }
    found = beam_search(model, padded(SOURCES), n_best=n_best, **settings)
    for source, hypotheses in zip(SOURCES, found, strict=True):
        expected = plain_beam_search(model, source, **settings)
        assert_same(hypotheses, expected[:n_best])


def test_a_hopeless_hypothesis_keeps_its_place():
    """Dropping it alone would leave room for others, and change the answer."""
    model, source = make_model(seed=17, scale=2.0), [5, 5, 4, 3, EOS]
    settings = {"beam": 6, "alpha": 1.0, "extra_length": 4}
    ((best,),) = beam_search(model, padded([source]), **settings)
    assert_same([best], plain_beam_search(model, source, **settings)[:1])


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_rows_may_change_hands(seed):
    """As many rows as before, but of other sources: memories follow."""
    model, sources = make_model(seed), [[4], [5, 4, 3, EOS]]
    found = beam_search(model, padded(sources), 10, n_best=10, extra_length=0)
    for source, hypotheses in zip(sources, found, strict=True):
        expected = plain_beam_search(model, source, beam=10, extra_length=0)
        assert_same(hypotheses, expected[:10])


@quick
@given(seeds, st.permutations(range(4)), st.integers(0, 3))
def test_batch_order_and_padding_change_nothing(seed, order, padding):
    """Each source gets what it gets alone, in the order of the batch."""
    model = make_model(seed)
    alone = [
        beam_search(model, padded([source]), n_best=2, extra_length=4)[0]
        for source in SOURCES
    ]
    src = padded([SOURCES[i] for i in order])
    src = torch.cat([src, src.new_zeros(4, padding)], 1)
    together = beam_search(model, src, n_best=2, extra_length=4)
    for i, hypotheses in zip(order, together, strict=True):
        assert_same(hypotheses, values(alone[i]))
    greedy = greedy_decode(model, src, extra_length=4)
    assert greedy == [
        greedy_decode(model, padded([SOURCES[i]]), extra_length=4)[0]
        for i in order
    ]


def test_the_papers_settings_are_the_defaults():
    """A beam of 4, alpha 0.6 in the form of GNMT, 50 words more at most."""
    model, src = make_model(seed=3), padded(SOURCES)
    said = beam_search(
        model, src, beam=4, alpha=0.6, offset=5, n_best=1, extra_length=50
    )
    assert beam_search(model, src) == said
    assert greedy_decode(model, src) == greedy_decode(
        model, src, extra_length=50
    )


@pytest.mark.parametrize(
    ("length", "alpha", "offset", "expected"),
    [
        (1, 0.6, 5, 1.0),
        (7, 0.6, 5, 2**0.6),
        (7, 1.0, 5, 2.0),
        (19, 0.5, 5, 2.0),
        (10, 0.6, 5, 1.7328621),
        (20, 0.0, 5, 1.0),
        (16, 0.5, 0, 4.0),
        (10, 0.6, 0, 3.9810717),
    ],
)
def test_length_penalty(length, alpha, offset, expected):
    """Known values of both forms, for numbers and for tensors."""
    assert math.isclose(
        length_penalty(length, alpha, offset), expected, rel_tol=1e-6
    )
    lengths = torch.tensor([length, length])
    assert_close(
        length_penalty(lengths, alpha, offset), torch.tensor([expected] * 2)
    )


def test_length_penalty_has_the_papers_form_by_default():
    """Alpha 0.6 and ((5 + length) / 6) ** alpha."""
    assert length_penalty(13) == 3**0.6


def test_scores_are_log_probabilities_over_penalties():
    """The end symbol counts as a word, in probability and in length."""
    model = make_model(seed=1)
    for (found,), source in zip(
        beam_search(model, padded(SOURCES)), SOURCES, strict=True
    ):
        said = [*found.tokens, EOS]
        total = sum(
            next_log_probabilities(model, source, [said[:i]])[0][word]
            for i, word in enumerate(said)
        )
        assert math.isclose(found.log_prob, total, abs_tol=1e-4)
        penalty = ((5 + len(said)) / 6) ** 0.6
        assert math.isclose(found.score, total / penalty, abs_tol=1e-4)


@quick
@given(seeds)
def test_n_best_are_distinct_and_sorted(seed):
    """The best comes first, and is what a search for one finds."""
    model, src = make_model(seed), padded(SOURCES)
    found = beam_search(model, src, beam=6, n_best=6, extra_length=4)
    for hypotheses in found:
        assert len(hypotheses) == 6
        assert len({tuple(h.tokens) for h in hypotheses}) == 6
        assert all(a.score >= b.score for a, b in pairwise(hypotheses))
    for n in (1, 3):
        fewer = beam_search(model, src, beam=6, n_best=n, extra_length=4)
        for some, all_of_them in zip(fewer, found, strict=True):
            assert_same(some, values(all_of_them[:n]))


def test_fewer_than_n_best_where_there_are_no_more():
    """With one word and one place there are two sentences."""
    model = make_model(vocab_size=4)
    (found,) = beam_search(
        model, torch.tensor([[3]]), 8, n_best=8, extra_length=0
    )
    assert sorted(h.tokens for h in found) == [[], [3]]


def change_logits(monkeypatch, model, **values):
    """Make a model say some words always, or never."""
    logits = model.embeddings.logits

    def changed(hidden):
        scores = logits(hidden)
        for name, value in values.items():
            scores[..., getattr(decoding, name, PAD)] = value
        return scores

    monkeypatch.setattr(model.embeddings, "logits", changed)


@pytest.mark.parametrize("length", [1, 500])
def test_the_limit_is_the_source_and_so_many_words(monkeypatch, length):
    """One that never wants to end has to; the short one does not wait."""
    model = make_model()
    change_logits(monkeypatch, model, EOS=-30.0)
    src = padded([[4] * length, [5, EOS]])
    words = [length + 3, 2 + 3]
    assert [len(w) for w in greedy_decode(model, src, extra_length=3)] == words
    found = beam_search(model, src, beam=2, alpha=0, extra_length=3)
    assert [len(h.tokens) for (h,) in found] == words


def test_an_end_at_the_limit_is_counted():
    """A hypothesis that has to end pays for its end like any other."""
    model = make_model(seed=5)
    (found,) = beam_search(
        model, torch.tensor([[4, EOS]]), 400, 0, n_best=40, extra_length=1
    )
    longest = [h for h in found if len(h.tokens) == 3]
    assert len(found) == 40
    assert len(longest) == 27
    whole = sum(math.exp(h.log_prob) for h in found)
    assert whole < 1  # more words were cut off


def test_damaged_weights_are_named():
    """A search that no word can win says why, and returns no empty list."""
    model = make_model()
    model.embeddings.weight.data[3] = math.nan
    with pytest.raises(ValueError, match=r"not finite.*damaged"):
        beam_search(model, padded(SOURCES))
    with pytest.raises(ValueError, match=r"not finite.*damaged"):
        greedy_decode(model, padded(SOURCES))


def test_a_source_of_one_token():
    """No more is needed than an end symbol."""
    model = make_model(seed=2)
    src = torch.tensor([[EOS]])
    expected = plain_beam_search(model, [EOS], beam=4, extra_length=5)
    (found,) = beam_search(model, src, n_best=4, extra_length=5)
    assert_same(found, expected[:4])
    assert greedy_decode(model, src) == [
        h.tokens for (h,) in beam_search(model, src, beam=1)
    ]


def test_ties_are_broken_always_the_same_way():
    """When all words are as probable, batches and repetitions agree."""
    model = make_model(vocab_size=40)
    model.embeddings.weight.data.zero_()
    src = padded([[4, 5, EOS], [7, EOS], [8, 9, 4, EOS]])
    once = beam_search(model, src, n_best=3, extra_length=2)
    assert beam_search(model, src, n_best=3, extra_length=2) == once
    assert beam_search(model, src[[2, 0, 1]], n_best=3, extra_length=2) == [
        once[2],
        once[0],
        once[1],
    ]
    narrow = beam_search(model, src, beam=1, extra_length=2)
    assert [h.tokens for (h,) in narrow] == greedy_decode(
        model, src, extra_length=2
    )
    for found in once:
        assert len({tuple(h.tokens) for h in found}) == 3


@pytest.mark.parametrize("learned", [3, 6, 60])
def test_no_more_words_than_learned_positions(monkeypatch, learned):
    """The start symbol takes one of them."""
    model = make_model(learned_positions=learned)
    change_logits(monkeypatch, model, EOS=-30.0)
    src = torch.tensor([[4, 5, EOS]])
    words = min(learned - 1, 3 + 50)
    assert [len(w) for w in greedy_decode(model, src)] == [words]
    ((found,),) = beam_search(model, src, beam=2, alpha=0)
    assert len(found.tokens) == words


def test_padding_and_start_are_never_said(monkeypatch):
    """However probable the model thinks them, and nothing of them counts."""
    model, src = make_model(), padded(SOURCES)
    greedy = greedy_decode(model, src, extra_length=3)
    beams = beam_search(model, src, n_best=3, extra_length=3)
    change_logits(monkeypatch, model, BOS=90.0, PAD=80.0)
    assert greedy_decode(model, src, extra_length=3) == greedy
    assert beam_search(model, src, n_best=3, extra_length=3) == beams


def test_another_pad_is_never_said(monkeypatch):
    """The padding is that of the model; 0 is then a word like any other."""
    model = make_model(pad=5)
    change_logits(monkeypatch, model, EOS=-30.0)
    model.embeddings.weight.data[5] *= 20
    src = torch.tensor([[4, 3, EOS], [4, EOS, 5]])
    (first,), (second,) = beam_search(
        model, src, beam=3, extra_length=2, alpha=0
    )
    assert 5 not in first.tokens + second.tokens
    assert (len(first.tokens), len(second.tokens)) == (5, 4)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("search", [greedy_decode, beam_search])
def test_the_training_mode_is_restored(monkeypatch, search, training):
    """Decoding goes without dropout, and errors leave the model as it was."""
    model, src = make_model(dropout=0.5), padded(SOURCES)
    expected = search(model, src, extra_length=4)
    model.train(training)
    assert search(model, src, extra_length=4) == expected
    assert all(module.training == training for module in model.modules())

    def fail(*_):
        assert not model.training
        assert not torch.is_grad_enabled()
        raise RuntimeError("no")

    monkeypatch.setattr(model.embeddings, "logits", fail)
    with pytest.raises(RuntimeError, match="no"):
        search(model, src)
    assert all(module.training == training for module in model.modules())


def test_a_model_can_be_trained_after_decoding():
    """Nothing of the mode for use sticks to the weights or to the caller."""
    model, src = make_model().train(), padded(SOURCES)
    beam_search(model, src, extra_length=2)
    model(src, src).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"beam": 0}, "beam: 0, expected at least 1"),
        ({"beam": 2.0}, r"beam: 2\.0, expected int"),
        ({"beam": True}, "beam: True, expected int"),
        ({"alpha": "0.6"}, r"alpha: '0\.6', expected int or float"),
        ({"alpha": -0.1}, r"alpha: -0\.1, expected at least 0"),
        ({"alpha": math.nan}, "alpha: nan, expected at least 0"),
        ({"alpha": math.inf}, "alpha: inf, expected at least 0, and finite"),
        ({"offset": -1}, "offset: -1, expected at least 0"),
        ({"n_best": 0}, "n_best: 0, expected at least 1"),
        ({"n_best": 5}, "n_best: 5, but the beam is 4 wide"),
        ({"extra_length": -1}, "extra_length: -1, expected at least 0"),
        ({"src": torch.tensor([4, EOS])}, r"src: shape \(2,\), expected \(B"),
        ({"src": torch.zeros(0, 3, dtype=torch.long)}, r"src: shape \(0, 3\)"),
        ({"src": [[4, EOS]]}, "src: list, expected a tensor"),
        ({"src": torch.tensor([[9, EOS]])}, "src: 9 in sentence 0"),
        ({"src": torch.tensor([[PAD, EOS]])}, "src: sentence 0 has padding"),
    ],
)
def test_bad_arguments_are_named(change, words):
    """What cannot be meant is refused before any work."""
    arguments = {"src": padded(SOURCES)} | change
    with pytest.raises(ValueError, match=words):
        beam_search(make_model(), **arguments)
    if set(change) <= {"src", "extra_length"}:
        with pytest.raises(ValueError, match=words):
            greedy_decode(make_model(), **arguments)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_models_of_low_precision_decode(dtype):
    """Sums are made in single precision, and the best is nearly as good."""
    exact, src = make_model(seed=4, scale=1.5), padded(SOURCES)
    rough = make_model(seed=4, scale=1.5).to(dtype)
    for (a,), (b,) in zip(
        beam_search(exact, src, extra_length=4),
        beam_search(rough, src, extra_length=4),
        strict=True,
    ):
        assert abs(a.score - b.score) < 0.1
    assert len(greedy_decode(rough, src, extra_length=4)) == len(SOURCES)
    decoder = IncrementalDecoder(rough, src)
    assert decoder.next_logits(src.new_full((4,), BOS)).dtype == torch.float32


@pytest.fixture
def rows_computed(monkeypatch):
    """How many rows each step of a search has computed."""
    counts, next_logits = [], IncrementalDecoder.next_logits

    def counted(decoder, tokens):
        counts.append(len(tokens))
        return next_logits(decoder, tokens)

    monkeypatch.setattr(IncrementalDecoder, "next_logits", counted)
    return counts


def test_finished_sentences_leave_the_batch(monkeypatch, rows_computed):
    """Three sentences that end after 1, 2 and 5 words take 2 + 3 + 6 rows."""
    model = make_model()
    change_logits(monkeypatch, model, EOS=-30.0)
    src = padded([[4], [5, 4], [3, 3, 3, 4, 5]])
    greedy_decode(model, src, extra_length=0)
    assert rows_computed == [3, 2, 1, 1, 1]  # no step to say the end
    rows_computed.clear()
    beam_search(model, src, beam=1, extra_length=0)
    assert rows_computed == [3, 3, 2, 1, 1, 1]
    rows_computed.clear()
    beam_search(model, src, beam=3, extra_length=0)
    assert rows_computed == [3, 9, 6, 3, 3, 3]


def test_search_stops_when_nothing_better_can_come(monkeypatch, rows_computed):
    """An early end that is nearly sure leaves nothing to hope for."""
    model = make_model()
    change_logits(monkeypatch, model, EOS=200.0)  # its exponential is infinite
    src = padded([[4, 5, EOS]])
    assert beam_search(model, src)[0][0].tokens == []
    assert rows_computed == [1]
    rows_computed.clear()
    assert len(beam_search(model, src, n_best=2)[0]) == 2
    assert rows_computed == [1, 3]


def test_a_hypothesis_is_a_value():
    """Equal when its fields are, and not to be changed."""
    found = Hypothesis([4], -0.5, -1.0)
    assert found == Hypothesis([4], -0.5, -1.0)
    with pytest.raises(AttributeError):
        found.score = 0.0


def test_sources_of_small_integers():
    """The type of the ids changes nothing."""
    model, src = make_model(), padded(SOURCES)
    assert beam_search(model, src.int(), extra_length=3) == beam_search(
        model, src, extra_length=3
    )
    assert greedy_decode(model, src.int(), 3) == greedy_decode(model, src, 3)


@pytest.mark.parametrize(("end", "best"), [(0.52, [3]), (0.55, [])])
def test_the_bound_is_neither_loose_nor_tight(
    monkeypatch, rows_computed, end, best
):
    """At the greatest length a hypothesis attains it, and may win by little.

    With alpha 1, ending at once scores log 0.52 = -0.654 or log 0.55 = -0.598;
    ending after one word 6/7 log 0.48 = -0.629 or 6/7 log 0.45 = -0.684.
    """
    first = torch.full((6,), -40.0)
    first[EOS], first[3] = math.log(end), math.log(1 - end)
    second = torch.full((6,), -40.0)
    second[EOS] = 0.0
    steps = iter([first, second])
    model = make_model()
    monkeypatch.setattr(
        model.embeddings, "logits", lambda hidden: next(steps)[None].clone()
    )
    ((found,),) = beam_search(
        model, torch.tensor([[4]]), 2, 1.0, extra_length=0
    )
    assert found.tokens == best
    assert rows_computed == ([1, 1] if best else [1])
