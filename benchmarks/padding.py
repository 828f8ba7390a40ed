"""Padding and speed of several ways to make batches of Multi30k.

python -m benchmarks.padding
"""

import random
import time
from types import SimpleNamespace

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torchtext.data import BucketIterator, Dataset, Field
from torchtext.data.utils import RandomShuffler

from benchmarks.report import write_result
from transformer_annotated.batching import (
    Batches,
    cut_into_batches,
    padding_fraction,
    token_batches,
)
from transformer_annotated.workshop.corpora import load_corpus

SEED = 0
VOCABULARY = 10_000
BUDGETS = (1024, 2048, 4096, 8192, 25_000)


def bucket_batches(
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    max_tokens: int,
    seed: int = 0,
    sort_within_batch: bool | None = True,
) -> list[np.ndarray]:
    """What torchtext's BucketIterator makes of a corpus, to compare with.

    Arguments and answer are those of ``token_batches``. torchtext sorts only
    if ``sort_within_batch`` is true; its own default is not to, ours is.
    """
    longer = np.maximum(source_lengths, target_lengths) + 1
    examples = [SimpleNamespace(row=i, length=n) for i, n in enumerate(longer)]
    rows = Field(sequential=False, use_vocab=False)
    iterator = BucketIterator(
        Dataset(examples, [("row", rows)]),
        max_tokens,
        sort_key=lambda example: example.length,
        batch_size_fn=batch_cells,
        sort_within_batch=sort_within_batch,
    )
    iterator.random_shuffler = RandomShuffler(random.Random(seed).getstate())
    return [batch.row.numpy() for batch in iterator]


def batch_cells(new: SimpleNamespace, count: int, before: int) -> int:
    """Cells of a batch of torchtext's with its new, ``count``-th example."""
    longest = before // (count - 1) if count > 1 else 0
    return count * max(longest, new.length)


class ListPairs:
    """Encoded sentence pairs, in memory."""

    def __init__(self, sources: list, targets: list) -> None:
        """Keep the ids, and count them."""
        self.sources, self.targets = sources, targets
        self.source_lengths = np.array([len(ids) for ids in sources])
        self.target_lengths = np.array([len(ids) for ids in targets])

    def source(self, i: int) -> np.ndarray:
        """Ids of a source."""
        return self.sources[i]

    def target(self, i: int) -> np.ndarray:
        """Ids of a target."""
        return self.targets[i]


def encode() -> ListPairs:
    """Byte pairs of both languages, English to German."""
    pairs = load_corpus("multi30k").splits["train"]
    english, german = zip(*pairs, strict=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.train_from_iterator(
        english + german,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY, min_frequency=2, show_progress=False
        ),
    )
    return ListPairs(
        *(
            [
                np.array(line.ids, np.uint16) + 4  # after the special symbols
                for line in tokenizer.encode_batch(side)
            ]
            for side in (english, german)
        )
    )


def ways(source: np.ndarray, target: np.ndarray, budget: int) -> dict:
    """Batches of one budget, by the name of what made them."""
    chance = np.random.default_rng(SEED)
    by_source = np.argsort(source, kind="stable")
    return {
        "random order": cut_into_batches(
            chance.permutation(len(source)), source, target, budget
        ),
        "sorted by source": cut_into_batches(by_source, source, target, budget),
        "torchtext": bucket_batches(source, target, budget, SEED),
        "torchtext, its default": bucket_batches(
            source, target, budget, SEED, sort_within_batch=None
        ),
        "token_batches": token_batches(source, target, budget, SEED),
    }


def measure(pairs: ListPairs) -> list[dict]:
    """A row for each budget and way."""
    lengths = pairs.source_lengths, pairs.target_lengths
    rows = []
    for budget in BUDGETS:
        for way, batches in ways(*lengths, budget).items():
            labels = [int(lengths[1][b].sum()) + len(b) for b in batches]
            rows.append(
                {
                    "max_tokens": budget,
                    "way": way,
                    "padding": round(padding_fraction(batches, *lengths), 4),
                    "batches": len(batches),
                    "labels": {
                        "mean": round(float(np.mean(labels))),
                        "least": min(labels),
                    },
                }
            )
    return rows


def speed(pairs: ListPairs) -> dict:
    """Tokens of both sides in a second of processor time, best of three."""
    tokens = int(pairs.source_lengths.sum() + pairs.target_lengths.sum())
    tokens += 2 * len(pairs.sources)
    seconds = []
    for epoch in range(3):
        began = time.process_time()
        for _ in Batches(pairs, 25_000, SEED, epoch):
            pass
        seconds.append(time.process_time() - began)
    return {
        "max_tokens": 25_000,
        "tokens_per_second": round(tokens / min(seconds)),
    }


def large() -> dict:
    """Processor time to arrange 4.5 million pairs, of made-up lengths."""
    chance = np.random.default_rng(SEED)
    source = np.clip(chance.lognormal(3.1, 0.6, 4_500_000), 1, 250)
    target = np.clip(source * chance.lognormal(0, 0.2, len(source)), 1, 250)
    lengths = source.astype(np.int32), target.astype(np.int32)
    began = time.process_time()
    batches = token_batches(*lengths, 25_000, SEED)
    seconds = time.process_time() - began
    return {
        "pairs": len(source),
        "max_tokens": 25_000,
        "seconds": round(seconds, 1),
        "batches": len(batches),
        "padding": round(padding_fraction(batches, *lengths), 4),
    }


def main() -> None:
    """Measure, and write the results."""
    pairs = encode()
    write_result(
        "padding",
        measure(pairs),
        ("numpy", "tokenizers", "torch", "torchtext"),
        SEED,
        corpus="Multi30k, training part, English to German",
        vocabulary=VOCABULARY,
        pairs=len(pairs.sources),
        **{"making tensors": speed(pairs), "arranging": large()},
    )


if __name__ == "__main__":
    main()
