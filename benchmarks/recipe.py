"""Training speed of a recipe, on one core and on two, in both precisions.

    python -m benchmarks.recipe [--recipe everyday-de-en] [--rounds 3]

Whole updates of the model that the recipe names, in batches of its size, of
sentences of 5 to 20 words drawn at random. Rounds are interleaved, so that a
noisy machine hits all settings alike. The precision bf16 is worth its name only
on processors that multiply it. Writes results/training-recipe.json.
"""

import argparse
import statistics
import time
from dataclasses import replace
from itertools import product

import torch

from benchmarks.report import write_result
from benchmarks.training import PAD, SEED, VOCABULARY, batches
from transformer_annotated.batching import Batch
from transformer_annotated.model import Transformer
from transformer_annotated.optimizer import NoamOptimizer
from transformer_annotated.training import ModelWithLoss, train_step
from transformer_annotated.workshop.recipe import read_recipe


def main() -> None:
    """Train with every setting in turns, and write down the speeds."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--recipe", default="everyday-de-en")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    recipe = read_recipe(options.recipe)
    torch.manual_seed(SEED)
    model = Transformer(replace(recipe.model, vocab_size=VOCABULARY)).train()
    learner = ModelWithLoss(model, recipe.training.label_smoothing)
    optimizer = NoamOptimizer(model.parameters(), model.config.d_model)
    data = batches(10, recipe.training.batch_tokens, (5, 20))
    tokens = [int((tgt[:, 1:] != PAD).sum()) for _, tgt in data]
    parts = [[Batch(*pair, n)] for pair, n in zip(data, tokens, strict=True)]
    speeds = {setting: [] for setting in product((1, 2), ("float32", "bf16"))}
    for number in range(options.rounds + 1):  # the first one warms up
        for (threads, precision), found in speeds.items():
            torch.set_num_threads(threads)
            begun = time.perf_counter()
            for part in parts:
                train_step(learner, optimizer, part, bf16=precision == "bf16")
            if number:
                found.append(sum(tokens) / (time.perf_counter() - begun))
    write_result(
        "training-recipe",
        [
            {
                "model": "this book",
                "threads": threads,
                "precision": precision,
                "tokens_per_second": round(statistics.median(found)),
            }
            for (threads, precision), found in speeds.items()
        ],
        ("torch",),
        seed=SEED,
        recipe=options.recipe,
    )


if __name__ == "__main__":
    main()
