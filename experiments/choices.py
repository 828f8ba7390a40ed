"""What each choice for the shipped models brought, at equal time.

    python -m experiments.choices --out runs/choices [--workers 2] | --check

German to English. Each run has twelve minutes of one core, as the processor
counts them, and all but the last two have one choice more than the run before.
Scored by chrF on validation pairs of Tatoeba, on the same pairs typed in haste,
on single words, and on short and long sentences of parliament. Needs the
corpora tatoeba, europarl and everyday. Runs that are there are not repeated.
Writes results/choices.json, with journals and translations, from which --check
computes the scores again, if the corpora are there.
"""

import argparse
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from pathlib import Path

import torch

from benchmarks import report
from experiments import everyday, records
from transformer_annotated.evaluation import chrf
from transformer_annotated.workshop.corpora import load_corpus
from transformer_annotated.workshop.files import CorpusError
from transformer_annotated.workshop.journal import read_metrics
from transformer_annotated.workshop.recipe import read_recipe, run_recipe
from transformer_annotated.workshop.translator import Translator

NAME, MINUTES, PAIRS = "choices", 12, 500
SMALLER = ["batch_tokens=1536", "warmup=2000", "factor=0.7"]
CHOICES = {  # recipe, and what is changed
    "first edition": ("tatoeba-de-en", []),
    "smaller batches": ("tatoeba-de-en", SMALLER),
    "bfloat16": ("tatoeba-de-en", [*SMALLER, "precision=bf16"]),
    "more kinds of text": ("everyday-de-en", ["precision=bf16"]),
    "and four layers": ("everyday-de-en", ["precision=bf16", "layers=4"]),
    "and no dropout": ("everyday-de-en", ["precision=bf16", "dropout=0.0"]),
}


def slug(*words: str) -> str:
    """The name of a file."""
    return "-".join(words).replace(" ", "-")


def stop_after(seconds: float) -> None:
    """Ask this process to stop when it has computed for so long."""

    def watch() -> None:
        while time.process_time() < seconds:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def tests() -> dict[str, list[tuple[str, str]]]:
    """What all runs translate: German, and English."""
    languages = {"source": "de", "target": "en"}
    tatoeba, spoken = (
        load_corpus(name, **languages).splits
        for name in ("tatoeba", "europarl")
    )
    said = [tatoeba["valid"][i] for i in range(PAIRS)]
    return {
        "everyday": said,
        "in haste": [everyday.typed_alike(pair, True, True) for pair in said],
        "words": [*everyday.word_pairs(tatoeba["valid"])],
    } | {
        kind: [*islice(everyday.of_length(spoken["valid"], most, least), PAIRS)]
        for kind, (_, least, most) in zip(
            ("parliament", "long sentences"), everyday.PARLIAMENT, strict=True
        )
    }


def run(choice: str, out: Path) -> tuple[list[dict], dict[str, list[str]]]:
    """Train for so long, and translate; the journal, and what came out."""
    torch.set_num_threads(1)
    recipe, changes = CHOICES[choice]
    folder = out / slug(choice)
    stop_after(60 * MINUTES)
    run_recipe(
        read_recipe(recipe, [*changes, "steps=1000000", "keep=1"]),
        folder,
        progress_bar=False,
    )
    translator = Translator.load(folder, device="cpu")
    outputs = {
        what: translator.translate([source for source, _ in pairs])
        for what, pairs in tests().items()
    }
    return read_metrics(folder), outputs


def scores(outputs: dict[str, list[str]], pairs: dict) -> dict[str, float]:
    """chrF of each test."""
    return {
        what: round(chrf(lines, [t for _, t in pairs[what]]).value, 1)
        for what, lines in outputs.items()
    }


def main() -> None:
    """Run what is missing, and write it down."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/choices"))
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    pairs, rows, journals, outputs = tests(), [], {}, {}
    with ProcessPoolExecutor(
        options.workers, get_context("spawn"), max_tasks_per_child=1
    ) as pool:
        running = {
            choice: pool.submit(
                records.cached,
                options.out / f"{slug(choice)}.json",
                run,
                choice,
                options.out,
            )
            for choice in CHOICES
        }
        for choice, job in running.items():
            journal, found = job.result()
            journals[slug(choice)] = journal
            outputs |= {slug(choice, what): found[what] for what in pairs}
            about = {"choice": choice, "updates": journal[-1]["step"]}
            rows.append(about | scores(found, pairs))
    records.write_record(
        NAME,
        rows,
        ("torch", "sacrebleu"),
        seed=0,
        runs=journals,
        outputs=outputs,
        minutes=MINUTES,
    )


def check() -> Iterator[records.Checked]:
    """The scores, from the stored translations."""
    if not (report.RESULTS / f"{NAME}.json").exists():
        yield ("no run is stored yet",)
        return
    found = records.load_record(NAME)
    yield from records.check_stored(found)
    try:
        pairs = tests()
    except (CorpusError, ConnectionError):
        yield ("chrF: the corpora are not here",)
        return
    for row in found["rows"]:
        lines = {
            what: records.output(found, slug(row["choice"], what))
            for what in pairs
        }
        for what, score in scores(lines, pairs).items():
            yield f"{row['choice']}, {what}", row[what], score


if __name__ == "__main__":
    records.start(main, check)
