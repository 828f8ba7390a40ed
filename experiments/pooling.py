"""Is it because of ``[CLS]`` that two heads of BERT answer like a coin?

    python -m experiments.pooling --out runs/pooling
    python -m experiments.pooling --check

Tunes the heads for sentences and for pairs, after masked words, on eight times
as many labels and for three times as long as experiments/bert.py does, with the
vector of ``[CLS]`` and with the mean of all vectors. Models, texts, rates and
tests are those of experiments/bert.py; three seeds. What is there is not
repeated. Writes results/pooling.json, and every answer to the folder
results/pooling, from which ``--check`` computes the accuracies again.
"""

import argparse
import copy
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from experiments import bert, records
from transformer_annotated.after.bert import Bert
from transformer_annotated.after.heads import BertWithHead, fine_tune, predict
from transformer_annotated.after.labels import sample_examples
from transformer_annotated.text import PAD

SEEDS, START = bert.SEEDS, "masked words"
HEADS = ("sentence", "pair")
LABELLED, UPDATES = 8000, 500


class MeanHead(BertWithHead):
    """A head that reads the mean of all vectors, instead of that of CLS."""

    def forward(self, ids: Tensor) -> Tensor:
        """Logits ``(B, 1, C)`` of texts ``(B, S)``."""
        real = (ids != PAD)[..., None]  # (B, S, 1)
        mean = (self.bert(ids) * real).sum(1) / real.sum(1)
        return self.output(mean)[:, None]


POOLS = {"[CLS]": BertWithHead, "mean": MeanHead}


def classify(start: Bert, head: str, pool: str, seed: int) -> str:
    """Answers of a head that reads one vector a text."""
    examples = sample_examples(head, LABELLED, seed=100 + seed)
    torch.manual_seed(seed)
    model = POOLS[pool](copy.deepcopy(start), head, 2)
    fine_tune(model, bert.encode(examples), UPDATES, seed=seed)
    said = predict(model, bert.tests(head))
    return " ".join(",".join(map(str, a)) for a in said)


def answers(out: Path) -> dict[str, list[str]]:
    """What all runs say, one a line, after what they are."""
    found: dict[str, list[str]] = {head: [] for head in HEADS}
    for seed in SEEDS:
        bert.pretrain(START, seed, out)
        model = bert.load(START, seed, out, bert.STEPS).bert
        for head, pool in product(HEADS, POOLS):
            said = records.cached(
                out / f"{head}-{START}-{pool}-{seed}.json",
                partial(classify, model, head, pool, seed),
            )
            found[head].append(f"{pool}\t{seed}\t{said}")
    return found


def summary(found: dict[str, list[str]]) -> list[dict]:
    """The accuracies of all runs."""
    rows = []
    for head, lines in found.items():
        for line in lines:
            pool, seed, said = line.split("\t")
            right = bert.accuracy(said, head, bert.tests(head))
            rows.append(
                {"head": head, "pool": pool, "seed": int(seed),
                 "accuracy": right}
            )  # fmt: skip
    return rows


def check() -> Iterator[records.Checked]:
    """Accuracies, computed again from answers and the grammar's labels."""
    found = records.load_record("pooling")
    yield from records.check_stored(found)
    said = {head: records.output(found, head) for head in HEADS}
    yield "accuracies", found["rows"], summary(said)


def main() -> None:
    """Train what is missing, measure, and write it down."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/pooling"))
    out = parser.parse_args().out
    torch.set_num_threads(1)
    said = answers(out)
    records.write_record(
        "pooling",
        summary(said),
        ("torch",),
        list(SEEDS),
        {f"masked-words-{seed}": out / f"{START}-{seed}" for seed in SEEDS},
        said,
        updates=bert.STEPS,
        labelled=LABELLED,
        tuning_updates=UPDATES,
    )


if __name__ == "__main__":
    records.start(main, check)
