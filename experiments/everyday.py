"""Text for the shipped models: everyday sentences, some of them typed in haste.

    python -m experiments.everyday --out data/everyday

Sets 2,000 pairs of Tatoeba's training part aside, as a test on which nothing is
chosen. To the rest it adds sentences of the European Parliament, for words that
are rare at breakfast, and a second copy of some everyday pairs as people type
them, without capitals or full stop on either side, so that an answer is written
like its question. Writes train, val and test as tables, which the corpus
"everyday" reads.
"""

import argparse
import random
from collections.abc import Iterable, Iterator
from pathlib import Path

from experiments import records
from transformer_annotated.workshop.corpora import load_corpus
from transformer_annotated.workshop.files import write_atomically
from transformer_annotated.workshop.parallel import hold_out

TEST = 2_000
PARLIAMENT, WORDS = 40_000, 20
HASTE = 0.15
Pair = tuple[str, str]


def typed(text: str, lower: bool, bare: bool) -> str:
    """A sentence as it may be typed: in lower case, without its full stop."""
    text = text.rstrip(".!?") if bare else text
    return text.lower() if lower else text


def in_haste(pairs: Iterable[Pair], rate: float, seed: int) -> Iterator[Pair]:
    """Some of the pairs once more, as they may be typed."""
    draw = random.Random(seed)
    ways = ((True, True), (True, False), (False, True))
    for pair in pairs:
        if draw.random() < rate:
            lower, bare = draw.choice(ways)
            yield tuple(typed(side, lower, bare) for side in pair)


def short(pairs: Iterable[Pair], words: int) -> Iterator[Pair]:
    """Pairs of which neither side is long."""
    for pair in pairs:
        if max(len(side.split()) for side in pair) <= words:
            yield pair


def mixture(seed: int = 0) -> dict[str, list[Pair]]:
    """The parts: everyday, parliament, in haste; and what is set aside."""
    tatoeba = load_corpus("tatoeba", source="en", target="de")
    train, test = hold_out(tatoeba.splits["train"], TEST, seed)
    train = list(train)
    europarl = load_corpus("europarl", source="en", target="de")
    spoken = short(europarl.splits["train"], WORDS)
    added = [pair for pair, _ in zip(spoken, range(PARLIAMENT), strict=False)]
    return {
        "train": [*train, *added, *in_haste(train, HASTE, seed)],
        "val": list(tatoeba.splits["valid"]),
        "test": list(test),
    }


def main() -> None:
    """Write the three tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("data/everyday"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for name, pairs in mixture().items():
        table = "".join(f"{english}\t{german}\n" for english, german in pairs)
        write_atomically(out / f"{name}.en-de.tsv", table)
        print(f"{out / name}.en-de.tsv: {len(pairs):,} pairs")


def check() -> Iterator[records.Checked]:
    """Nothing is stored but the text itself, which is not ours to keep."""
    yield ("the corpus is made anew, and has no stored result",)


if __name__ == "__main__":
    records.start(main, check)
