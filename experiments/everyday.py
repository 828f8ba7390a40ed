"""Text for the shipped models: everyday sentences, some of them typed in haste.

    python -m experiments.everyday --out data/everyday

Sets 2,000 pairs of Tatoeba's training part aside, as a test on which nothing is
chosen. To the rest it adds sentences of the European Parliament, for words that
are rare at breakfast. People also type single words and greetings, of which
there are few: so it adds pairs of words that mostly come together, and what
remains of a sentence when the name at its end is taken away. These, very short
sentences and some of the others are there once more as people type them,
without capitals or full stop on either side, so that an answer is written like
its question; and what is as short as a word or two, several times, or the long
sentences would drown it. Writes train, val and test as tables, which the corpus
"everyday" reads.
"""

import argparse
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path

from experiments import records
from transformer_annotated.workshop.corpora import load_corpus
from transformer_annotated.workshop.files import write_atomically
from transformer_annotated.workshop.parallel import hold_out

TEST = 2_000
PARLIAMENT, WORDS = 40_000, 20
HASTE, TIMES = 0.15, 3
LEAST, MOST, DICE = 3, 2_000, 0.3  # how often words occur, and together
WAYS = ((True, True), (True, False), (False, True))
Pair = tuple[str, str]


def typed(text: str, lower: bool, bare: bool) -> str:
    """A sentence as it may be typed: in lower case, without its full stop."""
    text = text.rstrip(".!?") if bare else text
    return text.lower() if lower else text


def typed_alike(pair: Pair, lower: bool, bare: bool) -> Pair:
    """Both sides of a pair, in the same haste."""
    source, target = pair
    return typed(source, lower, bare), typed(target, lower, bare)


def in_haste(pairs: Iterable[Pair], rate: float, seed: int) -> Iterator[Pair]:
    """Some of the pairs once more, as they may be typed."""
    draw = random.Random(seed)
    for pair in pairs:
        if draw.random() < rate:
            yield typed_alike(pair, *draw.choice(WAYS))


def short(pairs: Iterable[Pair], words: int) -> Iterator[Pair]:
    """Pairs of which neither side is long."""
    for pair in pairs:
        if max(len(side.split()) for side in pair) <= words:
            yield pair


def nameless(pairs: Iterable[Pair]) -> Iterator[Pair]:
    """What remains of "Good morning, Tom." if both sides end with the name."""
    ending = re.compile(r"(.+), (\w+)([.!?])")
    for pair in pairs:
        both = [ending.fullmatch(side) for side in pair]
        if all(both) and both[0][2] == both[1][2]:
            yield tuple(found[1] + found[3] for found in both)


def word_pairs(pairs: Sequence[Pair]) -> Iterator[Pair]:
    """Words of which each is the other's most faithful companion.

    How faithful two words are is measured by Dice's coefficient: twice the
    number of pairs that have both, divided by the sum of those with either.
    Words that are said alone are left out: their translations are there.
    """
    words = [[set(re.findall(r"[^\W\d_]+", side)) for side in p] for p in pairs]
    alone = {typed(side, True, True) for pair in pairs for side in pair}
    counts = [Counter(w for p in words for w in p[side]) for side in (0, 1)]

    def frequent(side: int, found: set[str]) -> list[str]:
        return [w for w in found if LEAST <= counts[side][w] <= MOST]

    together = Counter(
        both
        for p in words
        for both in product(*(frequent(i, p[i]) for i in (0, 1)))
    )
    best = [{}, {}]
    for both, count in sorted(together.items()):
        dice = 2 * count / sum(counts[i][both[i]] for i in (0, 1))
        for i in (0, 1):
            best[i][both[i]] = max(best[i].get(both[i], (DICE,)), (dice, both))
    for _, *both in best[0].values():
        faithful = both and best[1][both[0][1]][1:] == tuple(both)
        if faithful and not alone & {word.lower() for word in both[0]}:
            yield both[0]


def mixture(seed: int = 0) -> dict[str, list[Pair]]:
    """The parts: what to train on, and what is set aside.

    Of what is set aside nothing is added, however it is typed.
    """
    tatoeba = load_corpus("tatoeba", source="en", target="de")
    train, test = hold_out(tatoeba.splits["train"], TEST, seed)
    train = list(train)
    europarl = load_corpus("europarl", source="en", target="de")
    spoken = short(europarl.splits["train"], WORDS)
    spoken = [pair for pair, _ in zip(spoken, range(PARLIAMENT), strict=False)]
    few = [*nameless(train), *word_pairs([*train, *spoken]), *short(train, 2)]
    added = [
        *spoken,
        *in_haste(train, HASTE, seed),
        *TIMES * [*few, *(typed_alike(p, *way) for way in WAYS for p in few)],
    ]
    parts = {"val": list(tatoeba.splits["valid"]), "test": list(test)}
    kept = {
        typed(s, True, True) for part in parts.values() for p in part for s in p
    }
    new = (p for p in added if not any(typed(s, True, True) in kept for s in p))
    return {"train": [*train, *new]} | parts


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
