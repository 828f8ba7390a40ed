"""Parsers of the grammar and of GUM: F1 by length, label and training trees.

    python -m experiments.parsing --out runs/parsing
    python -m experiments.parsing --check

Trains the recipes ``grammar-parsing`` and ``gum-parsing`` with three seeds and
three numbers of trees. Parses what is held out, greedily and, with all trees,
by the paper's search. Runs that are there are not repeated; with ``--only``,
those that are named are written down as they are. Writes results/parsing.json,
and beside it the journals, and for each tree the brackets that were found, from
which ``--check`` computes the scores again. For those of GUM it needs the
corpus. Fewer trees have half as many updates; where GUM is cut, every n-th tree
is taken, because its files are in the order of its kinds of text.
"""

import argparse
import itertools
import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from nltk.tree import Tree

from benchmarks import report
from experiments import records
from transformer_annotated.parsing import (
    CLOSE,
    OPEN,
    BracketScore,
    bracket_score,
    linearise,
    parse,
    repair,
    right_branching,
    spans,
)
from transformer_annotated.workshop.corpora import load_corpus
from transformer_annotated.workshop.encoded import EncodedPairs
from transformer_annotated.workshop.files import CorpusError, write_atomically
from transformer_annotated.workshop.journal import read_metrics
from transformer_annotated.workshop.memory import count_parameters
from transformer_annotated.workshop.parsers import valid_trees
from transformer_annotated.workshop.recipe import read_recipe, run_recipe
from transformer_annotated.workshop.translator import Translator
from transformer_annotated.workshop.treebanks import trees_of

SEEDS = (0, 1, 2)
COUNT = 438  # trees to parse, of either corpus
WHOLE = {"grammar": 20_000, "gum": 3707}  # trees to train on
FEWER = (1000, 250)
LENGTHS = ((1, 10), (11, 20), (21, 30), (31, 200))
LABELS = ("NP", "VP", "PP", "S", "SBAR", "ADVP", "ADJP", "PRN")
GREEDY = {"beam": 1, "alpha": 0.3}
PAPER = {"beam": 21, "alpha": 0.3}
MISTAKES = (
    "words missing",
    "words too many",
    "closed too early",
    "not opened",
    "not closed",
    "empty",
)


def runs() -> Iterator[tuple[str, str, int, int]]:
    """Name, corpus, trees and seed of each training, most needed first."""
    for seed, corpus in itertools.product(SEEDS, WHOLE):
        yield f"{corpus}-{WHOLE[corpus]}-{seed}", corpus, WHOLE[corpus], seed
    for seed, corpus, size in itertools.product(SEEDS, WHOLE, FEWER):
        yield f"{corpus}-{size}-{seed}", corpus, size, seed


def thinned(size: int, out: Path) -> Path:
    """A folder with so many trees of GUM, and with all of its dev part."""
    folder = out / f"trees-{size}"
    if not folder.exists():
        found = load_corpus("gum", folder=records.data_folder()).splits
        folder.mkdir()
        train = trees_of(found["train"])
        some = [train[i * len(train) // size] for i in range(size)]
        for name, trees in (("dev", trees_of(found["valid"])), ("train", some)):
            lines = "".join(f"{tree.pformat(10**9)}\n" for tree in trees)
            write_atomically(folder / f"{name}.ptb.tsv", lines)
    return folder


def changes_of(corpus: str, size: int, seed: int, out: Path) -> list[str]:
    """What a run changes in its recipe."""
    changes = [f"training.seed={seed}"]
    if size == WHOLE[corpus]:
        return changes
    steps = read_recipe(f"{corpus}-parsing").training.steps
    changes.append(f"training.steps={steps // 2}")
    cut = (
        f"corpus.folder={thinned(size, out)}"
        if corpus == "gum"
        else f"train_size={size}"
    )
    return [*changes, cut]


def is_whole(name: str) -> bool:
    """Whether a run had all trees."""
    corpus, trees, _ = name.split("-")
    return int(trees) == WHOLE[corpus]


def train(name: str, corpus: str, size: int, seed: int, out: Path) -> dict:
    """Train what is not there yet, and note how long it took."""
    changes = changes_of(corpus, size, seed, out)
    start = time.process_time()
    chosen = read_recipe(f"{corpus}-parsing", changes)
    state = run_recipe(chosen, out / name, resume=True, progress_bar=False)
    if not state.finished(chosen.training):
        raise SystemExit(f"{name}: stopped; start again to go on")
    return {"processor_seconds": round(time.process_time() - start)}


def mistakes(written: str, words: int) -> set[str]:
    """What keeps brackets from being a tree over so many words.

    Closed too early is a bracket in which another one is still open.
    """
    labels, starts, leaves, found = [], [], 0, set()
    for symbol in written.split():
        label = symbol.strip(OPEN + CLOSE)
        if symbol.startswith(OPEN):
            labels.append(label)
            starts.append(leaves)
        elif not symbol.endswith(CLOSE):
            leaves += 1
        elif label not in labels:
            found.add("not opened")
        else:
            if labels[-1] != label:
                found.add("closed too early")
            while labels.pop() != label:
                starts.pop()
            if starts.pop() == leaves:
                found.add("empty")
    if labels:
        found.add("not closed")
    if leaves != words:
        found.add("words missing" if leaves < words else "words too many")
    return found


def search(name: str, out: Path, count: int, **how: float) -> dict:
    """The brackets that a parser finds for what it validates on."""
    parser = Translator.load(out / name, device="cpu")
    gold = valid_trees(parser)[:count]
    start = time.process_time()
    found = parse(parser, [" ".join(tree.leaves()) for tree in gold], **how)
    return {
        "processor_seconds": round(time.process_time() - start),
        "peak_megabytes": report.peak_megabytes(),
        "parameters": count_parameters(parser.model.config),
        "brackets": [linearise(one.tree, "bare") for one in found],
        "ranks": [one.rank for one in found],
        "mistakes": Counter(
            kind
            for one, tree in zip(found, gold, strict=True)
            for kind in mistakes(one.brackets, len(tree.leaves()))
        ),
    }


def rebuilt(lines: Iterable[str], gold: list[Tree]) -> list[Tree]:
    """Trees from stored brackets, over the words of the gold trees."""
    return [
        repair(line, tree.leaves())
        for line, tree in zip(lines, gold, strict=True)
    ]


def f1(pairs: Iterable[tuple[Tree, Tree]], label: str | None = None) -> float:
    """The score of pairs of trees, gold and predicted."""
    scores = (bracket_score(gold, found, label) for gold, found in pairs)
    return round(sum(scores, BracketScore()).f1, 2)


def scores(gold: list[Tree], found: list[Tree]) -> dict:
    """F1 of all, by length, by label, and how many trees are right."""
    pairs = list(zip(gold, found, strict=True))
    return {
        "f1": f1(pairs),
        "exact": round(
            100 * sum(spans(g) == spans(p) for g, p in pairs) / len(pairs), 1
        ),
        "by_length": {
            f"{low}–{high}": f1(
                (g, p) for g, p in pairs if low <= len(g.leaves()) <= high
            )
            for low, high in LENGTHS
        },
        "by_label": {label: f1(pairs, label) for label in LABELS},
    }


def gold_trees(corpus: str) -> list[Tree] | None:
    """What a corpus validates on; None if it is not here."""
    try:
        if corpus == "grammar-trees":
            found = read_recipe("grammar-parsing").corpus.load()
        else:
            found = load_corpus(corpus, folder=records.data_folder())
    except CorpusError:
        return None
    return trees_of(found.splits["valid"])[:COUNT]


def measure(name: str, out: Path, gold: dict) -> dict:
    """A row of the result, for a parser that has been trained and tried."""
    corpus, trees, seed = name.split("-")
    found = read(out / f"{name}-greedy.json")
    return {
        "corpus": corpus,
        "trees": int(trees),
        "seed": int(seed),
        "short_enough": len(EncodedPairs(out / name / "data" / "train")),
        "updates": read_metrics(out / name)[-1]["step"],
        "parameters": found["parameters"],
        "processor_seconds": read(out / f"{name}.json")["processor_seconds"],
        **scores(gold[corpus], rebuilt(found["brackets"], gold[corpus])),
    }


def read(file: Path) -> dict:
    """What :func:`records.cached` has left."""
    return json.loads(file.read_text("utf-8"))


def searches(names: list[str], out: Path, gold: dict) -> Iterator[dict]:
    """What each search found of each parser that had all trees."""
    for name, how in itertools.product(names, ("greedy", "paper")):
        file = out / f"{name}-{how}.json"
        if not file.exists():
            continue
        found, corpus = read(file), name.partition("-")[0]
        some = gold[corpus][: len(found["ranks"])]
        ranks = found["ranks"]
        pairs = list(zip(some, rebuilt(found["brackets"], some), strict=True))
        mended = [
            p for p, rank in zip(pairs, ranks, strict=True) if rank is None
        ]
        yield {
            "parser": name,
            "search": {"greedy": "greedy", "paper": "beam 21"}[how],
            "sentences": len(ranks),
            "best is no tree": len(ranks) - ranks.count(0),
            "none is a tree": ranks.count(None),
            "F1": f1(pairs),
            "F1 of what is repaired": f1(mended),
            "processor seconds": found["processor_seconds"],
            "peak memory in MB": found["peak_megabytes"],
        }


def what_goes_wrong(names: list[str], out: Path) -> Iterator[dict]:
    """In how many greedy answers each mistake is; some have several."""
    for name in names:
        found = read(out / f"{name}-greedy.json")
        yield {
            "parser": name,
            "no tree": len(found["ranks"]) - found["ranks"].count(0),
            **{kind: found["mistakes"].get(kind, 0) for kind in MISTAKES},
        }


def examples(name: str, out: Path, gold: list[Tree]) -> list[dict]:
    """A few trees of about equal length, without anyone's address."""
    found = rebuilt(read(out / f"{name}-greedy.json")["brackets"], gold)
    fit = [
        i
        for i, tree in enumerate(gold)
        if 9 <= len(tree.leaves()) <= 13 and "@" not in "".join(tree.leaves())
    ]
    rows = []
    for i in fit[:: max(1, len(fit) // 4)][:4]:
        words = " ".join(gold[i].leaves())
        rows.append(
            {
                "name": f"{name.partition('-')[0]}: {words[:40]}",
                "gold": gold[i].pformat(10**9),
                "predicted": found[i].pformat(10**9),
            }
        )
    return rows


def summary(rows: list[dict], baseline: dict) -> list[dict]:
    """F1 of each corpus and number of trees, over the seeds."""
    found = []
    groups = sorted({(row["corpus"], row["trees"]) for row in rows})
    for corpus, trees in groups:
        same = [
            row
            for row in rows
            if (row["corpus"], row["trees"]) == (corpus, trees)
        ]
        updates = sorted({row["updates"] for row in same})
        some = [row["f1"] for row in same]
        found.append(
            {
                "corpus": corpus,
                "training trees": f"{trees:,}",
                "short enough": f"{same[0]['short_enough']:,}",
                "updates": ", ".join(f"{n:,}" for n in updates),
                "seeds": len(some),
                "F1": f"{sum(some) / len(some):.1f}",
                "range": f"{min(some):.1f}–{max(some):.1f}",
                "right-branching": f"{baseline[corpus]['f1']:.1f}",
            }
        )
    return found


def write(names: list[str], out: Path) -> None:
    """Write down what has been measured of these runs."""
    gold = {"grammar": gold_trees("grammar-trees"), "gum": gold_trees("gum")}
    baseline = {
        corpus: scores(trees, [right_branching(tree) for tree in trees])
        for corpus, trees in gold.items()
    }
    rows = [measure(name, out, gold) for name in names]
    whole = sorted(name for name in names if is_whole(name))
    shown = [n for n in whole if n.endswith("-0")]
    records.write_record(
        "parsing",
        rows,
        ("torch", "nltk"),
        sorted({row["seed"] for row in rows}),
        {name: out / name for name in names},
        {
            name if how == "greedy" else f"{name}-{how}": read(file)["brackets"]
            for name, how in itertools.product(names, ("greedy", "paper"))
            if (file := out / f"{name}-{how}.json").exists()
        },
        attribution="GUM (Zeldes 2017), CC BY 4.0: the sentences in examples",
        summary=summary(rows, baseline),
        baseline=baseline,
        search=list(searches(whole, out, gold)),
        mistakes=list(what_goes_wrong(whole, out)),
        examples=[
            row
            for name in shown
            for row in examples(name, out, gold[name.partition("-")[0]])
        ],
    )


def check() -> Iterator[records.Checked]:
    """The scores, from the stored brackets."""
    found = records.load_record("parsing")
    yield from records.check_stored(found)
    gold = {"grammar": gold_trees("grammar-trees"), "gum": gold_trees("gum")}
    for row in found["rows"]:
        name = f"{row['corpus']}-{row['trees']}-{row['seed']}"
        trees = gold[row["corpus"]]
        if trees is None:
            yield (f"{name}, F1",)
            continue
        again = scores(trees, rebuilt(records.output(found, name), trees))
        for key, value in again.items():
            yield f"{name}, {key}", row[key], value
    for row in found["search"]:
        name = row["parser"] + "-paper" * (row["search"] == "beam 21")
        trees = gold[row["parser"].partition("-")[0]]
        if trees is None:
            yield (f"{name}, F1 of the search",)
            continue
        trees = trees[: row["sentences"]]
        again = rebuilt(records.output(found, name), trees)
        yield (
            f"{name}, F1 of the search",
            row["F1"],
            f1(zip(trees, again, strict=True)),
        )
    yield (
        "summary",
        found["summary"],
        summary(found["rows"], found["baseline"]),
    )


def main() -> None:
    """Train and parse what is missing, and write it down."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/parsing"))
    parser.add_argument("--only", nargs="*", help="write these runs, as is")
    options = parser.parse_args()
    torch.set_num_threads(1)
    out = options.out
    out.mkdir(parents=True, exist_ok=True)
    if options.only:
        write(options.only, out)
        return
    for run in runs():
        name = run[0]
        records.cached(out / f"{name}.json", lambda r=run: train(*r, out))
        records.cached(
            out / f"{name}-greedy.json",
            lambda n=name: search(n, out, COUNT, **GREEDY),
        )
        print(f"{name}: done", flush=True)
    names = [name for name, *_ in runs()]
    for name in names:
        if is_whole(name):
            records.cached(
                out / f"{name}-paper.json",
                lambda n=name: search(n, out, COUNT, **PAPER),
            )
    write(names, out)


if __name__ == "__main__":
    records.start(main, check)
