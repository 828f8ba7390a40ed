"""A small English language model: its text, its perplexity, and the unicorns.

    python -m experiments.english corpus --out data/english
    transformer-annotated train gpt-english --out RUN
    python -m experiments.english ship RUN
    python -m experiments.english --check

The corpus is the English side of Tatoeba, each sentence once, and of Europarl
as much as makes some three words in four. Neighbours in these files do not
belong together, so a text of the corpus is a row of sentences of one kind, of
random length, and a model can learn from it how sentences go, but not how
stories go. The first column names the kind; it is what the model reads before
it writes. The second column is the text.

``ship`` averages the last checkpoints, writes models/gpt-english with weights
in a byte each, and measures what it wrote: perplexity by token and by character
on texts that were held out, and what the model writes, with seeds that were
fixed before anyone had read a sample. Writes results/english.json, with the
log-probability of each text, from which ``--check`` computes the perplexities.
"""

import argparse
import math
import random
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from experiments import records
from transformer_annotated.after.generation import sample
from transformer_annotated.after.gpt import log_likelihood
from transformer_annotated.batching import collate
from transformer_annotated.workshop.checkpoints import (
    average_checkpoints,
    list_checkpoints,
)
from transformer_annotated.workshop.corpora import load_corpus
from transformer_annotated.workshop.files import write_atomically
from transformer_annotated.workshop.memory import count_parameters
from transformer_annotated.workshop.translator import Translator

KINDS = {"everyday": "tatoeba", "parliament": "europarl"}
PARLIAMENT = 100_000
SHORTEST, LONGEST = 5, 110  # words of a text, before its last sentence
HERE = Path(__file__).resolve().parent
MODEL = HERE.parent / "models/gpt-english"
UNICORNS = (  # what GPT-2 was told, in our words
    "Scientists have found a herd of unicorns in a remote valley of the Andes. "
    "To the surprise of everyone, the unicorns speak perfect English."
)
TOP_P, WRITTEN, MOST = 0.9, 6, 250
SAMPLE = 20  # texts that go along, for tests


# --- the corpus


def sentences(corpus: str, split: str, most: int | None) -> list[str]:
    """The different English sentences of a part, in an order of our own."""
    pairs = load_corpus(corpus, source="en", target="de").splits[split]
    found = list(dict.fromkeys(english for english, _ in pairs))
    random.Random(0).shuffle(found)
    return found[:most]


def texts(lines: Iterable[str], seed: int = 0) -> Iterator[str]:
    """Sentences in rows: each row ends after a random number of words."""
    draw, row, words = random.Random(seed), [], 0
    wanted = draw.randint(SHORTEST, LONGEST)
    for line in lines:
        row.append(line)
        words += len(line.split())
        if words >= wanted:
            yield " ".join(row)
            row, words = [], 0
            wanted = draw.randint(SHORTEST, LONGEST)


def mixture(split: str) -> list[tuple[str, str]]:
    """Each text of a part, after its kind, in random order."""
    rows = []
    for kind, corpus in KINDS.items():
        most = PARLIAMENT if kind == "parliament" else None
        lines = sentences(corpus, split, most)
        rows += [(kind, text) for text in texts(lines)]
    random.Random(1).shuffle(rows)
    return rows


def write_corpus(out: Path) -> None:
    """Write two tables, to train on and to validate on."""
    out.mkdir(parents=True, exist_ok=True)
    for name, split in (("train", "train"), ("val", "valid")):
        rows = mixture(split)
        table = "".join(f"{kind}\t{text}\n" for kind, text in rows)
        write_atomically(out / f"{name}.tsv", table)
        print(f"{out / name}.tsv: {len(rows):,} texts")


# --- what the model has learned


def sources(model: Translator, kinds: list[str]) -> torch.Tensor:
    """What the model reads first, ``(B, S)``: the kind of each text."""
    return collate(model.tokenizer.encode_batch(kinds, "kind"))


def that_fit(
    model: Translator, rows: Iterable[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Texts for which the model has positions, with what it reads first."""
    room = model.model.config.learned_positions - 8
    return [
        (kind, text)
        for kind, text in rows
        if len(model.tokenizer.encode(text, "en")) <= room
    ]


@torch.no_grad()
def likelihoods(
    model: Translator, rows: list[tuple[str, str]]
) -> Iterator[str]:
    """Kind, tokens, characters and log-probability of each text."""
    for begin in range(0, len(rows), 20):
        some = rows[begin : begin + 20]
        ids = model.tokenizer.encode_batch([text for _, text in some], "en")
        src = sources(model, [kind for kind, _ in some])
        tgt = collate(ids, start=True)
        found = log_likelihood(model.model, src, tgt).tolist()
        for (kind, text), row, nats in zip(some, ids, found, strict=True):
            yield f"{kind}\t{len(row) + 1}\t{len(text) + 1}\t{nats:.3f}"


def perplexities(lines: list[str]) -> list[dict]:
    """By kind: perplexity of a token, and bits of a character.

    The end of a text counts as a token, and as a character.
    """
    rows = []
    for kind in KINDS:
        some = [line.split("\t")[1:] for line in lines if line.startswith(kind)]
        tokens, letters, nats = (
            sum(map(float, x)) for x in zip(*some, strict=True)
        )
        rows.append(
            {
                "kind": kind,
                "texts": len(some),
                "tokens": int(tokens),
                "perplexity": round(math.exp(-nats / tokens), 2),
                "perplexity of a character": round(
                    math.exp(-nats / letters), 3
                ),
                "bits a character": round(-nats / letters / math.log(2), 3),
            }
        )
    return rows


def written(model: Translator, kind: str, prompt: str, count: int) -> list[str]:
    """What the model writes after a prompt, the first samples of seed 0."""
    src = sources(model, [kind]).expand(count, -1)
    start = model.tokenizer.encode(prompt, "en") if prompt else []
    found = sample(
        model.model, src, start, top_p=TOP_P, max_length=MOST, seed=0
    )
    return [" ".join(model.tokenizer.decode(ids).split()) for ids in found]


def ship(run: Path, last: int) -> None:
    """Average, save, measure, and write it all down."""
    averaged = list_checkpoints(run / "checkpoints")[-last:]
    average_checkpoints(averaged, run / "model.safetensors")
    Translator.load(run, "cpu").save(MODEL, int8=True)
    model = Translator.load(MODEL, "cpu")
    corpus = load_corpus("english")
    valid = that_fit(model, corpus.splits["valid"])
    (MODEL / "sample.tsv").write_text(
        "".join(f"{kind}\t{text}\n" for kind, text in valid[:SAMPLE]), "utf-8"
    )
    lines = list(likelihoods(model, valid))
    rows = perplexities(lines)
    config, journal = model.model.config, records.read_metrics(run)
    facts = {
        "updates": int(averaged[-1].name.removeprefix("step-")),
        "averaged": len(averaged),
        "trained_tokens": journal[-1]["tokens"],
        "parameters": count_parameters(config),
        "megabytes": round(
            (MODEL / "model.safetensors").stat().st_size / 1e6, 2
        ),
        "prompt": UNICORNS,
        "top_p": TOP_P,
    }
    outputs = {"likelihoods": lines}
    for kind in KINDS:
        outputs[f"unicorns-{kind}"] = written(model, kind, UNICORNS, 1)
        outputs[f"free-{kind}"] = written(model, kind, "", WRITTEN)
    records.write_record(
        "english", rows, ("torch", "tokenizers"), 0, {"training": run}, outputs,
        **facts, samples={k: v for k, v in outputs.items() if "-" in k},
    )  # fmt: skip
    by = {row["kind"]: row for row in rows}
    form = (HERE / "card_english.md").read_text("utf-8")
    card = form.format(
        layers=config.layers, d_model=config.d_model, heads=config.heads,
        vocabulary=config.vocab_size, texts=len(corpus.splits["train"]),
        million=facts["trained_tokens"] / 1e6,
        **{kind: by[kind]["perplexity"] for kind in KINDS},
        **{f"bits_{kind}": by[kind]["bits a character"] for kind in KINDS},
        **facts,
    )  # fmt: skip
    (MODEL / "README.md").write_text(card, "utf-8")


def main() -> None:
    """Write the corpus, or ship a run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    corpus = commands.add_parser("corpus")
    corpus.add_argument("--out", type=Path, default=Path("data/english"))
    shipped = commands.add_parser("ship")
    shipped.add_argument("run", type=Path)
    shipped.add_argument("--last", type=int, default=4)
    options = parser.parse_args()
    if options.command == "corpus":
        write_corpus(options.out)
    else:
        ship(options.run, options.last)


def check() -> Iterator[records.Checked]:
    """Sizes from the files, perplexities from the stored log-probabilities."""
    found = records.load_record("english")
    yield from records.check_stored(found)
    lines = records.output(found, "likelihoods")
    yield "perplexities", found["rows"], perplexities(lines)
    size = (MODEL / "model.safetensors").stat().st_size / 1e6
    yield "MB", found["megabytes"], round(size, 2)
    count = count_parameters(Translator.load(MODEL, "cpu").model.config)
    yield "parameters", found["parameters"], count
    for name, said in found["samples"].items():
        yield f"samples, {name}", said, records.output(found, name)


if __name__ == "__main__":
    records.start(main, check)
