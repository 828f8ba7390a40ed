"""Padding and speed of four ways to make batches of Multi30k.

    python benchmarks/padding.py FOLDER --out results/padding.json

FOLDER holds ``train.en`` and ``train.de``, plain or with ``.gz``.
"""

import argparse
import gzip
import json
import platform
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from transformer_annotated.batching import (
    Batches,
    bucket_batches,
    cut_into_batches,
    padding_fraction,
    token_batches,
)

SEED = 0
VOCABULARY = 10_000
BUDGETS = (1024, 2048, 4096, 8192, 25_000)


def read(folder: Path, language: str) -> list[str]:
    """The training sentences of one language."""
    plain = folder / f"train.{language}"
    if plain.exists():
        data = plain.read_bytes()
    else:
        data = gzip.decompress(plain.with_name(f"{plain.name}.gz").read_bytes())
    return data.decode().removesuffix("\n").split("\n")


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


def encode(folder: Path) -> ListPairs:
    """Byte pairs of both languages, English to German."""
    texts = {language: read(folder, language) for language in ("en", "de")}
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.train_from_iterator(
        texts["en"] + texts["de"],
        trainers.BpeTrainer(
            vocab_size=VOCABULARY, min_frequency=2, show_progress=False
        ),
    )
    return ListPairs(
        *(
            [
                np.array(line.ids, np.uint16) + 4  # after the special symbols
                for line in tokenizer.encode_batch(texts[language])
            ]
            for language in ("en", "de")
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
    """Tokens of both sides a second, one process, best of three epochs."""
    tokens = int(pairs.source_lengths.sum() + pairs.target_lengths.sum())
    tokens += 2 * len(pairs.sources)
    seconds = []
    for epoch in range(3):
        began = time.perf_counter()
        for _ in Batches(pairs, 25_000, SEED, epoch):
            pass
        seconds.append(time.perf_counter() - began)
    return {
        "max_tokens": 25_000,
        "tokens_per_second": round(tokens / min(seconds)),
    }


def large() -> dict:
    """Seconds to arrange as many pairs as WMT 2014 has, of made-up lengths."""
    chance = np.random.default_rng(SEED)
    source = np.clip(chance.lognormal(3.1, 0.6, 4_500_000), 1, 250)
    target = np.clip(source * chance.lognormal(0, 0.2, len(source)), 1, 250)
    lengths = source.astype(np.int32), target.astype(np.int32)
    began = time.perf_counter()
    batches = token_batches(*lengths, 25_000, SEED)
    seconds = time.perf_counter() - began
    return {
        "pairs": len(source),
        "max_tokens": 25_000,
        "seconds": round(seconds, 1),
        "batches": len(batches),
        "padding": round(padding_fraction(batches, *lengths), 4),
    }


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--out", type=Path, default=Path("results/padding.json")
    )
    arguments = parser.parse_args()
    pairs = encode(arguments.folder)
    results = {
        "command": "python benchmarks/padding.py FOLDER",
        "corpus": "Multi30k, training part, English to German",
        "vocabulary": VOCABULARY,
        "pairs": len(pairs.sources),
        "seed": SEED,
        "versions": {
            "python": platform.python_version(),
            **{
                name: version(name)
                for name in ("numpy", "tokenizers", "torch", "torchtext")
            },
        },
        "machine": f"{platform.machine()}, {platform.system()}, one process",
        "rows": measure(pairs),
        "making tensors": speed(pairs),
        "arranging": large(),
    }
    arguments.out.parent.mkdir(exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
