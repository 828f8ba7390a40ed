"""What the benchmark of padding compares with is what torchtext does."""

import numpy as np

from benchmarks.padding import bucket_batches
from tests.test_batching import some_lengths
from transformer_annotated.batching import padding_fraction


def test_bucket_iterator_makes_batches_of_the_same_kind():
    """Every pair once, both sides within the budget, little padding."""
    source, target = some_lengths(1000)
    batches = bucket_batches(source, target, 512)
    assert sorted(np.concatenate(batches)) == list(range(1000))
    for side in (source, target):
        for rows in batches:
            assert len(rows) * (side[rows].max() + 1) <= 512
    assert padding_fraction(batches, source, target) < 0.2
    again = bucket_batches(source, target, 512)
    assert all(map(np.array_equal, batches, again))
    other = bucket_batches(source, target, 512, seed=1)
    assert [r.tolist() for r in batches] != [r.tolist() for r in other]


def test_bucket_iterator_does_not_sort_by_default():
    """The pitfall: within the budget, but with much padding."""
    source, target = some_lengths(1000)
    batches = bucket_batches(source, target, 512, sort_within_batch=None)
    for side in (source, target):
        for rows in batches:
            assert len(rows) * (side[rows].max() + 1) <= 512
    assert padding_fraction(batches, source, target) > 0.3
