"""Batches: nothing lost, nothing too large, the same for everybody."""

import json
import pickle
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close
from torch.utils.data import DataLoader

from tests.helpers import ListPairs
from tests.site import ROOT
from transformer_annotated.batching import (
    Batch,
    Batches,
    collate,
    cut_into_batches,
    padding_fraction,
    token_batches,
)
from transformer_annotated.model import (
    Transformer,
    TransformerConfig,
    shift_right,
)
from transformer_annotated.text import BOS, EOS, PAD, train_word_tokenizer
from transformer_annotated.workshop.encoded import encode_pairs


def numbered(source_lengths, target_lengths):
    """Pairs whose every token tells which pair it belongs to."""
    return ListPairs(
        [np.full(n, 4 + i, np.uint16) for i, n in enumerate(source_lengths)],
        [np.full(n, 4 + i, np.uint16) for i, n in enumerate(target_lengths)],
    )


def some_lengths(count, seed=0):
    """Lengths of a corpus of everyday sentences, ``(2, count)``."""
    chance = np.random.default_rng(seed)
    source = chance.lognormal(2.4, 0.5, count)
    target = source * chance.lognormal(0, 0.2, count)
    return np.clip([source, target], 1, 60).astype(int)


PAIR_LENGTHS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=80
)


# Rectangles


@pytest.mark.parametrize("start", [False, True])
def test_collate_by_hand(start):
    """Start symbol if asked for, words, end symbol, padding."""
    sentences = [[7, 8, 9], [], np.array([5], np.uint16)]
    first = [BOS] if start else []
    expected = [
        [*first, 7, 8, 9, EOS],
        [*first, EOS, PAD, PAD, PAD],
        [*first, 5, EOS, PAD, PAD],
    ]
    ids = collate(sentences, start)
    assert ids.dtype == torch.int64 and ids.tolist() == expected


def test_collate_keeps_large_ids():
    """Ids of 16 and 32 bits come through unchanged."""
    for dtype in (np.uint16, np.uint32):
        large = np.array([np.iinfo(dtype).max], dtype)
        assert collate([large])[0, 0] == np.iinfo(dtype).max


def test_collate_refuses_nothing():
    """A batch has at least one sentence."""
    with pytest.raises(ValueError, match="sentences: none"):
        collate([])


def test_batch_moves_to_a_device():
    """Both sides move; the count stays."""
    batch = Batch(torch.ones(2, 3).long(), torch.ones(2, 4).long(), 7)
    moved = batch.to("meta")
    assert moved.src.is_meta and moved.tgt.is_meta and moved.update_tokens == 7
    assert moved.src.shape == (2, 3) and moved.tgt.shape == (2, 4)
    assert not batch.src.is_meta


# Which pairs go together


@given(PAIR_LENGTHS, st.integers(31, 200), st.integers(0, 9))
def test_every_pair_once_and_no_batch_too_large(lengths, max_tokens, seed):
    """An epoch is a partition of the corpus, and both sides keep the budget."""
    source, target = np.array(lengths).T
    batches = token_batches(source, target, max_tokens, seed)
    assert sorted(np.concatenate(batches)) == list(range(len(lengths)))
    for rows in batches:
        pairs = numbered(source[rows], target[rows])
        assert collate(pairs.sources).numel() <= max_tokens
        inputs, labels = shift_right(collate(pairs.targets, start=True))
        assert inputs.numel() == labels.numel() <= max_tokens


@given(PAIR_LENGTHS, st.integers(31, 200))
def test_cut_order_keeps_the_order_and_fills_batches(lengths, max_tokens):
    """The first pair of a batch would not have fitted into the one before."""
    source, target = np.array(lengths).T
    longer = np.maximum(source, target) + 1
    order = np.random.default_rng(0).permutation(len(lengths))
    batches = cut_into_batches(order, source, target, max_tokens)
    assert np.concatenate(batches).tolist() == order.tolist()
    for i, rows in enumerate(batches):
        assert len(rows) * longer[rows].max() <= max_tokens
        if i + 1 < len(batches):
            more = [*rows, batches[i + 1][0]]
            assert len(more) * longer[more].max() > max_tokens


@given(PAIR_LENGTHS, st.integers(31, 200), st.integers(0, 9))
def test_batches_are_as_few_as_in_sorted_order(lengths, max_tokens, seed):
    """Making batches even does not make more of them."""
    source, target = np.array(lengths).T
    order = np.argsort(np.maximum(source, target), kind="stable")
    batches = token_batches(source, target, max_tokens, seed)
    assert len(batches) == len(
        cut_into_batches(order, source, target, max_tokens)
    )


def test_no_batch_is_a_straggler():
    """Eleven equal pairs, at most ten a batch, are cut as six and five."""
    ten = np.full(11, 9)
    sizes = [len(rows) for rows in token_batches(ten, ten, 100)]
    assert sorted(sizes) == [5, 6]


def test_full_batches_stay_full():
    """A hundred pairs of one token each are two batches of fifty."""
    none = np.zeros(100, int)  # the end symbol is the one token
    assert [len(rows) for rows in token_batches(none, none, 50)] == [50, 50]


@pytest.mark.parametrize("count", [1500, 2000, 2500, 3000])
def test_smallest_batch_is_near_the_others(count):
    """Whatever is left over at the end is shared by all batches."""
    source, target = some_lengths(count)
    longer = np.maximum(source, target) + 1
    for epoch in range(3):
        batches = token_batches(source, target, 1024, epoch=epoch)
        cells = [len(rows) * longer[rows].max() for rows in batches]
        assert min(cells) > 0.75 * np.mean(cells)


def test_seed_and_epoch_settle_the_batches():
    """The same again for the same two numbers, and others for others."""
    source, target = some_lengths(2000)

    def batches(seed, epoch):
        made = token_batches(source, target, 512, seed, epoch)
        return [rows.tolist() for rows in made]

    assert batches(0, 0) == batches(0, 0)
    different = [batches(*pair) for pair in [(0, 0), (0, 1), (1, 0), (1, 1)]]
    together = [{frozenset(rows) for rows in made} for made in different]
    for i in range(4):
        for j in range(i):
            assert different[i] != different[j]
            assert len(together[i] & together[j]) < 0.3 * len(together[i])


def test_known_batches():
    """Resumed runs rely on the numbers; these were drawn once."""
    source, target = some_lengths(12)
    batches = token_batches(source, target, 60, seed=1, epoch=2)
    assert [rows.tolist() for rows in batches] == [
        [7, 6],
        [1, 0, 3],
        [11, 5, 2],
        [8, 9, 10, 4],
    ]


def test_global_random_numbers_are_left_alone():
    """Batches neither depend on the global generators nor change them."""
    source, target = some_lengths(100)
    made = []
    for seed in (0, 1):
        random.seed(seed)
        np.random.seed(seed)
        before = random.getstate(), np.random.get_state()[1].tolist()
        batches = token_batches(source, target, 128)
        made.append([rows.tolist() for rows in batches])
        assert before == (random.getstate(), np.random.get_state()[1].tolist())
    assert made[0] == made[1]


def test_batches_are_not_in_the_order_of_length():
    """Short and long batches alternate at random."""
    source, target = some_lengths(3000)
    means = [source[rows].mean() for rows in token_batches(source, target, 512)]
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.3


def test_pairs_of_a_batch_are_of_similar_length():
    """Both sides: padding is a small part of what it is in random order."""
    source, target = some_lengths(10_000)
    batches = token_batches(source, target, 4096)
    naive = cut_into_batches(np.arange(10_000), source, target, 4096)
    share = padding_fraction(batches, source, target)
    assert share < 0.1 < 0.4 < padding_fraction(naive, source, target)
    for side in (source, target):
        inside = np.mean([side[rows].std() for rows in batches])
        assert inside < 0.3 * side.std()


def test_padding_share_by_hand():
    """Cells 2 × 4 and 2 × 3, one of them empty on each side: 2 of 14."""
    batches = [np.array([0, 1])]
    share = padding_fraction(batches, np.array([3, 2]), np.array([1, 2]))
    assert share == pytest.approx(2 / 14)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1], [1, 2], 9), "target_lengths: 2 of them, but source_lengths has"),
        (([], [], 9), "source_lengths: none"),
        (([1.5], [1], 9), "source_lengths: shape .* of float64"),
        (([1], [[1]], 9), r"target_lengths: shape \(1, 1\)"),
        (([1], [-1], 9), "negative"),
        (([1], [1], 0), "max_tokens: 0, expected at least 1"),
        (([1], [1], 9.0), "max_tokens: 9.0, expected an int"),
        (([1], [1], True), "max_tokens: True, expected an int"),
        (([1], [1], 9, -1), "seed: -1, expected at least 0"),
        (([1], [1], 9, 0, -1), "epoch: -1, expected at least 0"),
        (
            ([3, 4, 3], [3, 9, 3], 9),
            "max_tokens: 9, expected at least 10: pair 1 has 5 source, 10 t",
        ),
    ],
)
def test_impossible_corpora_are_refused(arguments, message):
    """The message names the argument, or the pair that does not fit."""
    source, target, *rest = arguments
    if not source:
        source = target = np.array([], int)
    with pytest.raises(ValueError, match=message):
        token_batches(np.array(source), np.array(target), *rest)


def test_a_pair_that_just_fits():
    """The budget itself is allowed: 8 tokens and an end symbol are 9."""
    assert len(token_batches(np.array([8]), np.array([8]), 9)) == 1


# Parts of an update


@settings(max_examples=50)
@given(
    PAIR_LENGTHS,
    st.integers(31, 200),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(0, 3),
)
def test_parts_are_the_whole_batch(
    lengths, budget, world_size, accumulate, epoch
):
    """Nothing is lost or repeated, and labels add up to ``tokens``."""
    pairs = numbered(*np.array(lengths).T)
    whole = Batches(pairs, budget, epoch=epoch)
    ranks = [
        Batches(pairs, budget, 0, epoch, rank, world_size, accumulate)
        for rank in range(world_size)
    ]
    for i in range(len(whole)):
        (batch,), rows = whole[i], whole.rows[i]
        cut = [rank[i] for rank in ranks]
        assert all(len(parts) == accumulate for parts in cut)
        parts = [
            cut[p % world_size][p // world_size]
            for p in range(world_size * accumulate)
        ]
        labels, seen = 0, []
        for p, part in enumerate(parts):
            assert (
                part.update_tokens
                == batch.update_tokens
                == whole.update_tokens[i]
            )
            counted = int(part.tgt[:, 1:].ne(PAD).sum())
            labels += counted
            if not counted:  # an idle part
                assert p >= len(rows) and part.src.shape[0] == 1
                assert part.tgt.tolist() == [[BOS, PAD]]
                assert_close(part.src, collate([pairs.source(rows[0])]))
                continue
            mine = rows[p :: world_size * accumulate]
            assert_close(part.src, collate([pairs.source(r) for r in mine]))
            assert_close(
                part.tgt, collate([pairs.target(r) for r in mine], True)
            )
            seen += mine.tolist()
        assert labels == batch.update_tokens and sorted(seen) == sorted(rows)


def test_batches_are_those_of_the_seed_and_the_epoch():
    """Batches hand both numbers on."""
    pairs = numbered(*some_lengths(200))
    lengths = pairs.source_lengths, pairs.target_lengths
    for seed, epoch in ((0, 0), (5, 0), (0, 3)):
        expected = token_batches(*lengths, 256, seed, epoch)
        made = Batches(pairs, 256, seed, epoch).rows
        assert all(map(np.array_equal, made, expected))


def test_parts_have_the_same_work():
    """Rows are dealt like cards, so parts differ by a row and few columns."""
    pairs = numbered(*some_lengths(2000))
    parts = [Batches(pairs, 4096, rank=r, world_size=8)[0][0] for r in range(8)]
    sizes = [part.src.numel() + part.tgt.numel() for part in parts]
    assert max(sizes) < 1.2 * min(sizes)


def gradient(model, parts):
    """The gradient of the sum of losses, divided by the update's tokens."""
    model.zero_grad()
    for part in parts:
        inputs, labels = shift_right(part.tgt)
        logits = model(part.src, inputs).flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(
            logits, labels.flatten(), ignore_index=PAD, reduction="sum"
        )
        (loss / part.update_tokens).backward()
    return [p.grad.clone() for p in model.parameters()]


@pytest.mark.parametrize(("world_size", "accumulate"), [(2, 1), (1, 3), (4, 4)])
def test_gradient_does_not_depend_on_the_parts(world_size, accumulate):
    """Idle parts and all, parts add up to the gradient of the whole batch."""
    pairs = numbered([3, 4, 5, 2, 6], [4, 4, 6, 3, 7])
    config = TransformerConfig(
        9, layers=1, d_model=8, d_ff=8, heads=2, dropout=0.0
    )
    model = Transformer(config).double()
    whole = gradient(model, Batches(pairs, 100)[0])
    parts = [
        part
        for rank in range(world_size)
        for part in Batches(pairs, 100, 0, 0, rank, world_size, accumulate)[0]
    ]
    assert_close(gradient(model, parts), whole)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"world_size": 0}, "world_size: 0, expected at least 1"),
        ({"accumulate": 0}, "accumulate: 0, expected at least 1"),
        ({"rank": -1}, "rank: -1, expected at least 0"),
        ({"rank": 2, "world_size": 2}, "rank: 2, expected less than the 2"),
    ],
)
def test_impossible_parts_are_refused(arguments, message):
    """The message names the argument."""
    with pytest.raises(ValueError, match=message):
        Batches(numbered([1], [1]), 9, **arguments)


# Loading


def same(left, right):
    """Whether two lists of updates hold the same parts."""
    return len(left) == len(right) and all(
        torch.equal(a.src, b.src)
        and torch.equal(a.tgt, b.tgt)
        and a.update_tokens == b.update_tokens
        for parts, others in zip(left, right, strict=True)
        for a, b in zip(parts, others, strict=True)
    )


def load(batches, start=0, workers=0):
    """What a DataLoader makes of them."""
    loader = DataLoader(
        batches,
        batch_size=None,
        sampler=range(start, len(batches)),
        num_workers=workers,
    )
    return list(loader)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore:This DataLoader")  # has one core
def test_loader_gives_the_batches_in_order(workers):
    """With workers or without, from the start or from the middle."""
    batches = Batches(numbered(*some_lengths(300)), 256, rank=1, world_size=2)
    plain = list(batches)
    assert len(plain) == len(batches) > 10
    assert same(load(batches, workers=workers), plain)
    resumed = Batches(numbered(*some_lengths(300)), 256, rank=1, world_size=2)
    assert same(load(resumed, start=7, workers=workers), plain[7:])


def test_batch_is_pinned_by_the_loader(monkeypatch):
    """DataLoader pins what has a method of that name: both sides."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda ids: ids + 100)
    from torch.utils.data._utils.pin_memory import pin_memory

    batch = Batch(torch.zeros(1, 2).long(), torch.zeros(1, 3).long(), 5)
    (pinned,) = pin_memory([batch])
    assert (
        pinned.src.min() == pinned.tgt.min() == 100
        and pinned.update_tokens == 5
    )


def test_encoded_corpus_is_what_batches_take(tmp_path):
    """Words on disk come out as rectangles, in another process too."""
    texts = [("a b c", "d e"), ("c", "e d"), ("a", "d d d d"), ("b b", "e e")]
    words = train_word_tokenizer(
        {"": [side for pair in texts for side in pair]}, 1
    )
    pairs = encode_pairs(texts, words, tmp_path / "pairs", "", "")
    batches = Batches(pairs, 12, seed=3)
    found = []
    for (batch,) in batches:
        sides = zip(batch.src.tolist(), batch.tgt.tolist(), strict=True)
        found += [tuple(words.decode(ids) for ids in pair) for pair in sides]
    assert sorted(found) == sorted(texts)
    sent = pickle.loads(pickle.dumps(batches))  # what a worker would get
    assert same(list(sent), list(batches))


# Multi30k


def test_measured_padding_is_small_and_as_the_chapter_says():
    """Less than 5% at 4,096 tokens, and the text quotes what was measured."""
    measured = json.loads((ROOT / "results" / "padding.json").read_text())
    rows = {(row["max_tokens"], row["way"]): row for row in measured["rows"]}
    assert rows[4096, "token_batches"]["padding"] < 0.05
    chapter = (ROOT / "notebooks" / "10_batching.ipynb").read_text("utf-8")
    default = rows[4096, "torchtext, its default"]["padding"]
    arranged = measured["arranging"]["padding"]
    papers = rows[25_000, "token_batches"]
    assert f"half padding: {100 * default:.1f}%" in chapter
    assert f"padding is {100 * arranged:.1f}%" in chapter
    assert f"has {papers['labels']['mean']:,} real target tokens" in chapter
    assert f"Multi30k is {papers['batches']} batches" in chapter
    assert measured["making tensors"]["tokens_per_second"] > 500_000
