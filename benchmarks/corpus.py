"""Encode a corpus, and read it: our arrays beside ``datasets`` and its Arrow.

    python -m benchmarks.corpus --pairs 200000

The corpus is drawn, not downloaded: words with the frequencies of natural
text, about 25 tokens a pair, written into two text files, and from there on
treated like any others. Each way is measured in a process of its own, by its
processor time and its memory at the worst moment, so that a machine that is
busy with other things does not matter much. The paper's corpus has 4,508,785
pairs.
"""

import argparse
import os
import random
import resource
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from itertools import islice, pairwise
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from datasets import Dataset, Features, Sequence, Value, load_from_disk

from benchmarks.report import write_result
from transformer_annotated.text import load_tokenizer, train_bpe
from transformer_annotated.workshop.encoded import EncodedPairs, encode_pairs
from transformer_annotated.workshop.parallel import FilePairs, read_pairs

READ, BATCH = 100_000, 1000  # pairs in all, and at a time


def draw_words(count: int, draw: random.Random) -> list[str]:
    """Different words of one syllable to four, mostly the short ones first."""
    words, vowels = {}, ["a", "e", "i", "ou", "ü"]
    while len(words) < count:
        syllables = draw.randint(1, 1 + min(3, len(words) // 100))
        word = "".join(
            draw.choice("bdfghklmnprstvwz") + draw.choice(vowels)
            for _ in range(syllables)
        )
        words[word + draw.choice(["", "n", "s", "r"])] = None
    return list(words)


def write_corpus(folder: Path, count: int, seed: int) -> None:
    """Write two parallel files; the n-th word is used in proportion to 1/n."""
    words = draw_words(30_000, random.Random(seed))
    shares = 1 / (np.arange(len(words)) + 10)
    below = np.cumsum(shares / shares.sum())
    generator = np.random.default_rng(seed)
    with (
        open(folder / "train.en", "w") as left,
        open(folder / "train.de", "w") as right,
    ):
        for start in range(0, count, 10_000):
            lines = 2 * min(10_000, count - start)
            ends = generator.integers(4, 17, lines).cumsum().tolist()
            drawn = below.searchsorted(generator.random(ends[-1])).tolist()
            stream = [words[min(rank, len(words) - 1)] for rank in drawn]
            text = [
                " ".join(stream[begin:end]).capitalize() + ".\n"
                for begin, end in pairwise([0, *ends])
            ]
            left.writelines(text[::2])
            right.writelines(text[1::2])


def draw(folder: Path, pairs: int, seed: int) -> dict:
    """The corpus, and byte pairs learned from a part of it."""
    write_corpus(folder, pairs, seed)
    text = in_files(folder)
    sample = (side for pair in islice(text, 100_000) for side in pair)
    train_bpe(sample, vocab_size=16_000).save(folder / "tokenizer.json")
    size = sum(file.stat().st_size for file in text.files) / 1e6
    return {"way": "text files", "disk_megabytes": round(size, 1)}


def in_files(folder: Path) -> FilePairs:
    """The corpus as text."""
    return read_pairs(folder / "train.en", folder / "train.de")


def reading(read: Callable[[np.ndarray], object], pairs: int) -> dict:
    """Microseconds a pair to read batches, in order and at random."""
    places, answer = np.random.default_rng(0).permutation(pairs)[:READ], {}
    for name, rows in (("in_order", np.sort(places)), ("random", places)):
        began = time.process_time()
        for batch in np.array_split(rows, len(rows) // BATCH):
            read(batch)
        spent = 1e6 * (time.process_time() - began) / len(places)
        answer[f"read_{name}_microseconds"] = round(spent, 2)
    return answer


def row(way: str, folder: Path, pairs: int, seconds: float) -> dict:
    """What every way of storing ids is asked."""
    size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    return {
        "way": way,
        "encode_cpu_seconds": round(seconds, 1),
        "pairs_per_core_second": round(pairs / seconds),
        "disk_megabytes": round(size / 1e6, 1),
    }


def peak() -> float:
    """The most memory that this process ever had, in megabytes."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


def arrays(folder: Path) -> dict:
    """Our arrays, from text files to reading back."""
    text, tokenizer = (
        in_files(folder),
        load_tokenizer(folder / "tokenizer.json"),
    )
    began = time.process_time()
    encode_pairs(text, tokenizer, folder / "encoded", "en", "de")
    seconds = time.process_time() - began
    answer = row("encode_pairs", folder / "encoded", len(text), seconds)
    answer["encode_peak_megabytes"] = peak()
    began = time.process_time()
    encoded = EncodedPairs.open(folder / "encoded")
    answer["open_seconds"] = round(time.process_time() - began, 3)

    def read(rows: np.ndarray) -> list:
        return [(encoded.source(i), encoded.target(i)) for i in rows]

    return answer | reading(read, len(encoded))


def arrow(folder: Path) -> dict:
    """The same with ``datasets``: text to Arrow, ``map``, a memory map."""
    text, tokenizer = (
        in_files(folder),
        load_tokenizer(folder / "tokenizer.json"),
    )

    def lines() -> Iterable[dict]:
        for source, target in text:
            yield {"source": source, "target": target}

    def encode(batch: dict) -> dict:
        return {side: tokenizer.encode_batch(batch[side]) for side in batch}

    ids = Sequence(Value("uint16"))
    features = Features({"source": ids, "target": ids})
    cache = str(folder / "cache")
    began = time.process_time()
    table = Dataset.from_generator(lines, cache_dir=cache)
    made = table.map(encode, batched=True, batch_size=10_000, features=features)
    made.save_to_disk(folder / "arrow")
    seconds = time.process_time() - began
    answer = row("datasets.map", folder / "arrow", len(text), seconds)
    answer["encode_peak_megabytes"] = peak()
    began = time.process_time()
    opened = load_from_disk(folder / "arrow").with_format("numpy")
    answer["open_seconds"] = round(time.process_time() - began, 3)
    return answer | reading(lambda rows: opened[rows], len(opened))


def tokenizing(folder: Path, way: str) -> dict:
    """Our cache of words beside the library's own ``encode_batch``."""
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    lines = [source for source, _ in islice(in_files(folder), 200_000)]
    chunks = [lines[i : i + 10_000] for i in range(0, len(lines), 10_000)]
    began, busy = time.perf_counter(), time.process_time()
    if way == "BPETokenizer":
        for chunk in chunks:
            tokenizer.encode_batch(chunk)
    else:
        for chunk in chunks:
            for line in tokenizer.tokenizer.encode_batch_fast(chunk):
                _ = line.ids
    return {
        "way": way,
        "cpu_microseconds_a_sentence": round(
            1e6 * (time.process_time() - busy) / len(lines), 2
        ),
        "microseconds_a_sentence": round(
            1e6 * (time.perf_counter() - began) / len(lines), 2
        ),
    }


def alone(work: Callable, *arguments: object, threads: int = 1) -> dict:
    """Do something in a process of its own, which has so many threads."""
    os.environ["RAYON_NUM_THREADS"] = str(threads)
    os.environ["TOKENIZERS_PARALLELISM"] = str(threads > 1).lower()
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        answer = pool.submit(work, *arguments).result()
    print(answer, flush=True)
    return answer


def main() -> None:
    """Measure, and write the numbers with all that made them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="for files of the corpus")
    options = parser.parse_args()
    library = "tokenizers, encode_batch"
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        rows = [alone(draw, folder, options.pairs, options.seed)]
        words = [
            alone(tokenizing, folder, way, threads=threads)
            | {"threads": threads}
            for way, threads in (
                ("BPETokenizer", 1),
                (library, 1),
                (library, 2),
            )
        ]
        rows += [alone(arrays, folder), alone(arrow, folder)]
    write_result(
        "corpus",
        rows,
        ("datasets", "numpy", "tokenizers"),
        options.seed,
        pairs=options.pairs,
        tokenizing=words,
    )


if __name__ == "__main__":
    main()
