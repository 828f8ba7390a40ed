"""Encode a corpus of the size of WMT 2014 English–German, and read it all.

    python benchmarks/corpus.py --out results/corpus.json

The corpus is drawn, not downloaded: words with the frequencies of natural
text, about 25 tokens a pair. It is written into two text files, and from there
on treated like any other pair of files. Memory is that of the encoding process
and, apart, of its largest worker, each at its worst moment. On a machine that
is busy with other things, pairs per second of processor time tell more than
pairs per second.
"""

import argparse
import json
import os
import platform
import random
import resource
import shutil
import sys
import tempfile
import time
from importlib.metadata import version
from itertools import islice, pairwise
from pathlib import Path

import numpy as np

from transformer_annotated.text import train_bpe
from transformer_annotated.workshop.corpora import encode_pairs, read_pairs


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


def write_corpus(folder: Path, count: int, seed: int) -> tuple[Path, Path]:
    """Write two parallel files; the n-th word is used in proportion to 1/n."""
    words = draw_words(30_000, random.Random(seed))
    shares = 1 / (np.arange(len(words)) + 10)
    below = np.cumsum(shares / shares.sum())
    generator = np.random.default_rng(seed)
    files = folder / "train.en", folder / "train.de"
    with open(files[0], "w") as left, open(files[1], "w") as right:
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
    return files


def peak_megabytes() -> dict[str, float]:
    """The most memory that this process, and its largest child, ever had."""
    who = {"main": resource.RUSAGE_SELF, "worker": resource.RUSAGE_CHILDREN}
    return {
        name: round(resource.getrusage(which).ru_maxrss / 1024, 1)
        for name, which in who.items()
    }


def disk_megabytes(folder: Path) -> float:
    """The size of a folder's files."""
    return round(sum(p.stat().st_size for p in folder.iterdir()) / 1e6, 1)


def measure(pairs: int, workers: int, seed: int, folder: Path) -> dict:
    """Draw, train byte pairs on a sample, encode, and read everything."""
    seconds, cpu, peaks = {}, {}, {}
    began, busy = time.perf_counter(), sum(os.times()[:4])

    def lap(name: str) -> None:
        nonlocal began, busy
        seconds[name] = round(time.perf_counter() - began, 2)
        cpu[name] = round(sum(os.times()[:4]) - busy, 2)
        peaks[name] = peak_megabytes()
        print(name, seconds[name], cpu[name], peaks[name], file=sys.stderr)
        began, busy = time.perf_counter(), sum(os.times()[:4])

    files = write_corpus(folder, pairs, seed)
    lap("draw")
    text = read_pairs(*files)
    lap("check")
    sample = (side for pair in islice(text, 100_000) for side in pair)
    tokenizer = train_bpe(sample, vocab_size=16_000)
    lap("train byte pairs")
    encoded = encode_pairs(
        text, tokenizer, folder / "encoded", "en", "de", workers=workers
    )
    lap("encode")
    encode_pairs(text, tokenizer, folder / "encoded", "en", "de")
    lap("open again")
    tokens = 0
    for i in range(len(encoded)):
        tokens += len(encoded.source(i)) + len(encoded.target(i))
    lap("read in order")
    order = np.random.default_rng(seed).permutation(len(encoded))
    check = sum(len(encoded.source(i)) + len(encoded.target(i)) for i in order)
    lap("read in random order")
    assert (
        check
        == tokens
        == encoded.source_lengths.sum() + (encoded.target_lengths.sum())
    )
    assert len(encoded) + encoded.skipped == pairs
    lengths = encoded.source_lengths.mean(), encoded.target_lengths.mean()
    return {
        "pairs": pairs,
        "encoded": len(encoded),
        "skipped": encoded.skipped,
        "tokens": int(tokens),
        "mean_tokens": [round(float(mean), 2) for mean in lengths],
        "vocab_size": tokenizer.vocab_size,
        "pairs_per_second": round(pairs / seconds["encode"]),
        "tokens_per_second": round(tokens / seconds["encode"]),
        "read_pairs_per_second": round(pairs / seconds["read in order"]),
        "text_megabytes": round(sum(f.stat().st_size for f in files) / 1e6, 1),
        "encoded_megabytes": disk_megabytes(encoded.folder),
        "pairs_per_core_second": round(pairs / cpu["encode"]),
        "seconds": seconds,
        "cpu_seconds": cpu,
        "peak_megabytes": peaks,
    }


def main() -> None:
    """Measure, and write the numbers with all that made them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=4_508_785)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="for some 1.5 GB of files")
    parser.add_argument("--out", type=Path, default=Path("results/corpus.json"))
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        numbers = measure(options.pairs, options.workers, options.seed, folder)
    finally:
        shutil.rmtree(folder)
    command = (
        f"python benchmarks/corpus.py --pairs {options.pairs} "
        f"--workers {options.workers} --seed {options.seed} "
        f"--out {options.out}"
    )
    result = {
        "command": command,
        "seed": options.seed,
        "workers": options.workers,
        **numbers,
        "machine": {
            "cores": os.cpu_count(),
            "load": os.getloadavg()[1],
            "system": platform.platform(),
        },
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("numpy", "tokenizers")},
        },
    }
    options.out.parent.mkdir(exist_ok=True)
    options.out.write_text(json.dumps(result, indent=2) + "\n")
    print(options.out.read_text())


if __name__ == "__main__":
    main()
