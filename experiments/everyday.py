"""Text for the shipped models: everyday sentences, some of them typed in haste.

    python -m experiments.everyday --out data/everyday

Sets 2,000 pairs of Tatoeba's training part aside, as a test on which nothing is
chosen. To the rest it adds sentences of the European Parliament, short ones for
words that are rare at breakfast, and long ones because there are few of more
than twenty words; and lines of several sentences, because people type those.
They also type single words and greetings: so it adds some phrases of a phrase
book, pairs of words that mostly come together, and what remains of a sentence
when the name at its end is taken away. These, very short sentences and some of
the others are there once more as people type them, without capitals or full
stop on either side, so that an answer is written like its question; and what is
as short as a word or two, several times, or the long sentences would drown it.
Writes train, val and test as tables, which the corpus "everyday" reads.
"""

import argparse
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, product
from pathlib import Path

from experiments import records
from transformer_annotated.workshop.corpora import load_corpus
from transformer_annotated.workshop.files import write_atomically
from transformer_annotated.workshop.parallel import hold_out, read_pairs

TEST = 2_000
PARLIAMENT = ((40_000, 1, 20), (15_000, 21, 40))  # how many, of which lengths
LINES, SENTENCES = 8_000, 3  # of several sentences, and at most how many
HASTE, TIMES = 0.15, 3
LEAST, DICE = 5, 0.3  # how often words occur, and together
WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
ENDS = (".", "!", "?")
PHRASES = Path(__file__).with_name("phrases.tsv")
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


def of_length(
    pairs: Iterable[Pair], most: int, least: int = 1
) -> Iterator[Pair]:
    """Pairs whose longer side has so many words."""
    for pair in pairs:
        if least <= max(len(side.split()) for side in pair) <= most:
            yield pair


def lines(pairs: Iterable[Pair], most: int, seed: int) -> Iterator[Pair]:
    """Two or more whole sentences in a line, drawn at random."""
    draw = random.Random(seed)
    whole = [p for p in pairs if all(side.endswith(ENDS) for side in p)]
    draw.shuffle(whole)
    while len(whole) > 1:
        count = min(draw.randint(2, most), len(whole))
        some = [whole.pop() for _ in range(count)]
        yield tuple(" ".join(sides) for sides in zip(*some, strict=True))


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
    words = [[set(WORD.findall(side)) for side in p] for p in pairs]
    alone = {typed(side, True, True) for pair in pairs for side in pair}
    counts = [Counter(w for p in words for w in p[side]) for side in (0, 1)]

    def frequent(side: int, found: set[str]) -> list[str]:
        return [w for w in found if counts[side][w] >= LEAST]

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
    spoken = [
        list(islice(of_length(europarl.splits["train"], most, least), count))
        for count, least, most in PARLIAMENT
    ]
    phrases = [*read_pairs(PHRASES), *nameless(train), *of_length(train, 2)]
    few = [*phrases, *word_pairs([*phrases, *train, *spoken[0]])]
    added = [
        *chain(*spoken),
        *islice(lines(train, SENTENCES, seed), LINES),
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
