"""BERT and ELECTRA on the made-up grammar: what pre-training is worth.

    python -m experiments.bert --out runs/bert
    python -m experiments.bert --check

Pre-trains an encoder with masked words, and another as ELECTRA, with three
seeds each, on texts without labels. Then tunes both, and one that was not
trained before, on 20 to 1,000 labelled examples of four tasks. Measures also
next-sentence prediction, the processor time of an update, and what the vectors
of a noun say of its role. What is there is not repeated. Writes
results/bert.json, and every answer to the folder results/bert, from which
``--check`` computes the accuracies again.
"""

import argparse
import copy
import random
import time
from functools import cache, partial
from itertools import chain
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn

from experiments import records
from transformer_annotated.after.bert import (
    IGNORE,
    Bert,
    BertConfig,
    MaskedLanguageLoss,
    MaskedLanguageModel,
    Texts,
)
from transformer_annotated.after.electra import Electra, ElectraLoss
from transformer_annotated.after.heads import (
    BertWithHead,
    encode_example,
    fine_tune,
    predict,
)
from transformer_annotated.after.labels import (
    ROLES,
    Example,
    best_guess,
    book_tokenizer,
    label_roles,
    sample_examples,
    sample_stories,
    sample_texts,
    sample_trees,
)
from transformer_annotated.batching import collate
from transformer_annotated.optimizer import NoamOptimizer
from transformer_annotated.training import (
    TrainingConfig,
    TrainState,
    train,
    train_step,
    training_batches,
)
from transformer_annotated.workshop.checkpoints import load_weights

SEEDS = (0, 1, 2)
STEPS, STORY_STEPS, EVERY = 1200, 2000, 100
FACTOR, WARMUP, UPDATES = 0.25, 200, 150
TEXTS, STORIES, TESTED = 20_000, 8_000, 500
SIZES = {
    "tags": (20, 100, 1000),
    "span": (1000,),
    "sentence": (1000,),
    "pair": (1000,),
}
STARTS = ("from scratch", "masked words", "ELECTRA", "ELECTRA, equal time")
KINDS = {
    "masked words": (MaskedLanguageModel, MaskedLanguageLoss),
    "ELECTRA": (Electra, ElectraLoss),
    "stories": (
        MaskedLanguageModel,
        partial(MaskedLanguageLoss, next_sentence=True),
    ),
}
NOUNS = "dog king queen cat lion teacher mother bird".split()
WORDS = book_tokenizer()


def config() -> BertConfig:
    """A BERT of two layers, for a vocabulary of some hundred words."""
    return BertConfig(WORDS.vocab_size, 2, 64, 256, 4, learned_positions=96)


def encode(examples: list[Example]) -> list[tuple[list[int], list[int]]]:
    """Ids and labels of all examples."""
    return [encode_example(WORDS, example) for example in examples]


@cache
def texts(kind: str) -> Texts:
    """What to pre-train on."""
    if kind == "stories":
        stories = sample_stories(STORIES, seed=11)
        follows = [story.label for story in stories]
        return Texts([ids for ids, _ in encode(stories)], follows)
    return Texts([ids for ids, _ in encode(sample_texts(TEXTS, seed=10))])


def training(kind: str, seed: int) -> TrainingConfig:
    """How to pre-train: all kinds alike."""
    steps = STORY_STEPS if kind == "stories" else STEPS
    return TrainingConfig(
        steps=steps, batch_tokens=800, warmup=WARMUP, factor=FACTOR,
        label_smoothing=0.0, seed=seed, log_every=EVERY,
        checkpoint_every=EVERY, keep=100,
    )  # fmt: skip


def pretrain(kind: str, seed: int, out: Path) -> Path:
    """Pre-train as far as that is not done; return the folder of the run."""
    folder, (make, learner) = out / f"{kind}-{seed}", KINDS[kind]
    wanted = training(kind, seed)
    if (folder / f"checkpoints/step-{wanted.steps}").exists():
        return folder
    torch.manual_seed(seed)
    train(
        make(config()), texts(kind), None, wanted, folder, resume=True,
        progress_bar=False, learner=learner,
    )  # fmt: skip
    return folder


def load(kind: str, seed: int, out: Path, step: int) -> nn.Module:
    """A pre-trained model."""
    model = KINDS[kind][0](config())
    load_weights(model, out / f"{kind}-{seed}/checkpoints/step-{step}")
    return model.eval()


def start_from(start: str, seed: int, out: Path, equal: int) -> Bert:
    """The encoder that tuning starts from."""
    torch.manual_seed(seed)
    if start == "from scratch":
        return Bert(config())
    kind, _, time = start.partition(", ")
    return load(kind, seed, out, equal if time else STEPS).bert


@cache
def labelled(head: str, seed: int) -> list:
    """Examples to tune on, encoded."""
    return encode(sample_examples(head, max(SIZES[head]), seed=100 + seed))


def tune(bert: Bert, head: str, count: int, seed: int, test: list) -> str:
    """The answers to all test questions, after tuning on some examples."""
    examples = labelled(head, seed)[:count]
    torch.manual_seed(seed)
    classes = len(ROLES) if head == "tags" else 2
    model = BertWithHead(copy.deepcopy(bert), head, classes)
    fine_tune(model, examples, UPDATES, seed=seed)
    return " ".join(",".join(map(str, a)) for a in predict(model, test))


@cache
def tests(head: str) -> list:
    """Examples that are not trained on, encoded."""
    return encode(sample_examples(head, TESTED, seed=7, split="test"))


def accuracy(answers: str, head: str, test: list) -> float:
    """Nouns with the right role, or examples without a mistake."""
    said = [[int(n) for n in part.split(",")] for part in answers.split()]
    truth = [[n for n in labels if n != IGNORE] for _, labels in test]
    if head == "tags":
        said, truth = (list(chain(*rows)) for rows in (said, truth))
    right = sum(a == b for a, b in zip(said, truth, strict=True))
    return round(right / len(truth), 4)


def speed() -> dict[str, float]:
    """Processor milliseconds of an update, kinds in turn."""
    rows = {}
    for kind in ("masked words", "ELECTRA"):
        make, learner = KINDS[kind]
        model = make(config())
        batches = training_batches(texts(kind), training(kind, 0), TrainState())
        optimizer = NoamOptimizer(model.parameters(), 64, WARMUP, FACTOR)
        rows[kind] = (learner(model.train()), optimizer, batches, [])
    for _ in range(40):
        for learner, optimizer, batches, times in rows.values():
            parts = next(batches)
            begin = time.process_time()
            train_step(learner, optimizer, parts)
            times.append(time.process_time() - begin)
    return {
        kind: round(1000 * median(row[-1][5:]), 2) for kind, row in rows.items()
    }


def stories(seed: int, out: Path) -> str:
    """Whether the second sentence follows, as one model answers."""
    model, found = load("stories", seed, out, STORY_STEPS), []
    with torch.no_grad():
        for ids, _ in story_tests():
            hidden = model.bert(collate([ids], start=True))
            found.append(model.follows(model.bert.pool(hidden)).argmax().item())
    return " ".join(map(str, found))


@cache
def story_tests() -> list:
    """Stories that are not trained on, encoded."""
    return encode(sample_stories(TESTED, seed=7, split="test"))


@cache
def nouns() -> dict[str, list[tuple[list[int], int, int]]]:
    """For each noun and role 40 sentences: ids, place, role."""
    found = {noun: [] for noun in NOUNS}
    many = {}
    for tree in sample_trees(9000, seed=8, split="test"):
        example = label_roles(tree, random)
        for i, (word, role) in enumerate(
            zip(example.first, example.label, strict=True)
        ):
            key = word, role
            if word in found and role is not None and many.get(key, 0) < 40:
                many[key] = many.get(key, 0) + 1
                ids = WORDS.encode(" ".join(example.first))
                found[word].append((ids, i + 1, role))
    return found


def vectors(bert: Bert, rows: list) -> list[Tensor]:
    """Vectors of a noun ``(sentences, d_model)`` at each depth."""
    ids = collate([row[0] for row in rows], start=True)
    place = torch.tensor([row[1] for row in rows])
    with torch.no_grad():
        layers = bert.layers(ids)
    return [x[torch.arange(len(rows)), place] for x in layers]


def nearest(seed: int, out: Path, step: int) -> list[dict]:
    """How often the nearest other vector of a noun has the same role."""
    found = []
    for start in ("from scratch", "masked words", "ELECTRA"):
        bert = start_from(start, seed, out, step).eval()
        right = []
        for rows in nouns().values():
            roles = torch.tensor([row[2] for row in rows])
            right.append([])
            for x in vectors(bert, rows):
                apart = torch.cdist(x, x).fill_diagonal_(torch.inf)
                same = roles[apart.argmin(1)] == roles
                right[-1].append(same.float().mean().item())
        for depth, values in enumerate(zip(*right, strict=True)):
            mean = sum(values) / len(values)
            found.append(
                {"start": start, "seed": seed, "layer": depth,
                 "same role": round(mean, 4)}
            )  # fmt: skip
    return found


def word_map(out: Path, step: int) -> list[dict]:
    """One noun's vectors at each depth, in the plane of most variance."""
    bert, rows = start_from("masked words", 0, out, step).eval(), nouns()["dog"]
    found = []
    for depth, x in enumerate(vectors(bert, rows)):
        x = x - x.mean(0)
        plane = x @ torch.linalg.svd(x, full_matrices=False)[2][:2].T
        for (ids, place, role), (a, b) in zip(
            rows, plane.tolist(), strict=True
        ):
            near = WORDS.decode(ids[max(0, place - 4) : place + 3])
            found.append(
                {"layer": depth, "role": ROLES[role], "words": near,
                 "x": round(a, 2), "y": round(b, 2)}
            )  # fmt: skip
    return found


def summary(answers: dict[str, list[str]]) -> list[dict]:
    """Accuracies of all runs, from their answers."""
    rows = []
    for head in SIZES:
        test = tests(head)
        for line in answers[head]:
            start, count, seed, said = line.split("\t")
            rows.append(
                {"head": head, "start": start, "labelled": int(count),
                 "seed": int(seed), "accuracy": accuracy(said, head, test)}
            )  # fmt: skip
    return rows


def story_rows(answers: dict[str, list[str]]) -> list[dict]:
    """The same for stories."""
    return [
        {"seed": seed, "accuracy": accuracy(said, "pair", story_tests())}
        for seed, said in zip(SEEDS, answers["stories"], strict=True)
    ]


def check() -> object:
    """Accuracies, computed again from answers and the grammar's labels."""
    found = records.load_record("bert")
    yield from records.check_stored(found)
    heads = [*SIZES, "stories"]
    answers = {head: records.output(found, head) for head in heads}
    yield "accuracies", found["rows"], summary(answers)
    yield "stories", found["stories"], story_rows(answers)


def main() -> None:
    """Train what is missing, measure, and write it down."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/bert"))
    out = parser.parse_args().out
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    times = records.cached(out / "speed.json", speed)
    ratio = times["masked words"] / times["ELECTRA"]
    equal = round(STEPS * ratio / EVERY) * EVERY
    runs, answers = {}, {head: [] for head in [*SIZES, "stories"]}
    for seed in SEEDS:
        for kind in KINDS:
            name = f"{kind}-{seed}".replace(", ", "-").replace(" ", "-")
            runs[name] = pretrain(kind, seed, out)
            print(name, flush=True)
        said = records.cached(
            out / f"stories-{seed}.json", partial(stories, seed, out)
        )
        answers["stories"].append(said)
        for head, sizes in SIZES.items():
            test = tests(head)
            for count in sizes:
                for start in STARTS if head == "tags" else STARTS[:3]:
                    name = f"{head}-{count}-{start}-{seed}.json"
                    bert = start_from(start, seed, out, equal)
                    said = records.cached(
                        out / name,
                        lambda b=bert, h=head, c=count, s=seed, t=test: tune(
                            b, h, c, s, t
                        ),
                    )
                    answers[head].append(f"{start}\t{count}\t{seed}\t{said}")
                    print(name, accuracy(said, head, test), flush=True)
    records.write_record(
        "bert",
        summary(answers),
        ("torch",),
        list(SEEDS),
        runs,
        answers,
        updates=STEPS,
        milliseconds=times,
        equal_time_updates=equal,
        tuning_updates=UPDATES,
        stories_updates=STORY_STEPS,
        stories=story_rows(answers),
        best_guess=round(
            best_guess(sample_stories(TESTED, seed=7, split="test")), 4
        ),
        nearest=[row for s in SEEDS for row in nearest(s, out, equal)],
        map=word_map(out, equal),
    )


if __name__ == "__main__":
    records.start(main, check)
