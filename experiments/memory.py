"""Neural Turing Machines on three tasks: how many learn, and how far it goes.

    python -m experiments.memory [--tasks NAME …] [--seeds N …] [--check]

Small machines are trained on tasks (to copy, to copy several times, to sort)
with three seeds each: with an LSTM as controller, with one that has no state
of its own, and beside them an LSTM alone. Then they are asked at sizes within
and beyond those of training, with as many slots as in training and with more.
A run that the folder ``--cache`` holds is not repeated. Writes
results/memory.json; ``--check`` computes its summary anew from the stored runs.
"""

import argparse
import copy
import statistics
import time
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from experiments import records
from transformer_annotated.after.memory import (
    MACHINES,
    TASKS,
    NeuralTuringMachine,
    bit_error,
    train_machine,
)

SEEDS = (3, 4, 5)
UPDATES = {"copy": 4000, "repeat copy": 5000, "priority sort": 5000}
RUNS = [*product(MACHINES, UPDATES)]
SIZES = {
    "copy": [(n,) for n in (1, 4, 8, 10, 12, 16, 20, 40)],
    "repeat copy": [(4, 4), (6, 4), (8, 4), (4, 6), (4, 8)],
    "priority sort": [(n,) for n in (2, 3, 4, 5, 6, 8)],
}
LARGEST = {"copy": (8,), "repeat copy": (4, 4), "priority sort": (5,)}
MORE_SLOTS = 64
LEARNED, EVERY = 0.01, 50  # wrong bits; updates over which they are averaged
VISIBLE = 0.055  # a smaller weight is hardly seen in a picture


def run(machine: str, task: str, seed: int) -> dict:
    """Train a machine once, and ask it at all sizes."""
    began = time.process_time()
    model, errors = train_machine(machine, task, seed, UPDATES[task])
    seconds = round(time.process_time() - began, 1)
    means = [
        round(statistics.fmean(errors[i : i + EVERY]), 4)
        for i in range(0, len(errors), EVERY)
    ]
    row = {"machine": machine, "task": task, "seed": seed}
    row |= {"processor_seconds": seconds, "errors": means}
    row["parameters"] = sum(p.numel() for p in model.parameters())
    for name, options in (("", {}), ("_more_slots", {"slots": MORE_SLOTS})):
        if name and machine == "lstm":
            continue
        row[f"error{name}"] = [
            {
                "sizes": list(sizes),
                "error": round(bit_error(model, task, *sizes, **options), 4),
            }
            for sizes in SIZES[task]
        ]
    if (machine, task) == ("ntm", "copy"):  # could it do without its memory?
        blank = without_writing(model)
        error = bit_error(blank, task, *LARGEST[task])
        row["error_unwritten"] = round(error, 4)
    return row | (traces(model, task) if machine != "lstm" else {})


@torch.no_grad()
def without_writing(model: NeuralTuringMachine) -> NeuralTuringMachine:
    """A copy that erases nothing and adds nothing: its memory stays blank."""
    model = copy.deepcopy(model)
    model.erase_add.weight.zero_()
    erase, add = model.erase_add.bias.chunk(2)
    erase.fill_(-torch.inf)
    add.zero_()
    return model


@torch.no_grad()
def traces(model: NeuralTuringMachine, task: str) -> dict:
    """Where a machine reads and writes, in one new sequence."""
    chance = torch.Generator().manual_seed(2**21)
    x, _ = TASKS[task][0](100, chance, *LARGEST[task])
    _, reading, writing = model.run(x)
    items = LARGEST[task][0]
    row = {
        "steps": x.size(1),
        "items": items,
        "reading": sparse(reading[0]),
        "writing": sparse(writing[0]),
    }
    if task == "priority sort":
        row["priorities"] = [round(p, 3) for p in x[0, :items, -1].tolist()]
        row["place_of_priority"] = place_of_priority(x, writing, items)
    return row


def sparse(weights: Tensor) -> list[list[float]]:
    """Step, slot and weight, of all weights ``(T, N)`` that can be seen."""
    return [
        [t, i, round(weights[t, i].item(), 2)]
        for t, i in (weights >= VISIBLE).nonzero().tolist()
    ]


def place_of_priority(x: Tensor, writing: Tensor, items: int) -> float:
    """The part of the variance of write places that priorities explain.

    The place is the slot with the most weight; squared correlation.
    """
    place = writing[:, :items].argmax(-1).flatten().double()
    priority = x[:, :items, -1].flatten().double()
    if place.std() == 0:
        return 0.0
    table = torch.stack([place, priority])
    return round(torch.corrcoef(table)[0, 1].item() ** 2, 3)


def summary(rows: Sequence[dict]) -> list[dict]:
    """Over seeds: how many learned, and the range of errors at each size."""
    found = []
    for machine, task in RUNS:
        mine = [r for r in rows if (r["machine"], r["task"]) == (machine, task)]
        if not mine:
            continue
        row = {"machine": machine, "task": task, "runs": len(mine)}
        steps = [learned_after(r, LARGEST[task]) for r in mine]
        row["learned_after"] = steps
        row["learned"] = sum(step is not None for step in steps)
        for key in ("error", "error_more_slots"):
            if key in mine[0]:
                row[key] = [
                    spread(at)
                    for at in zip(*(r[key] for r in mine), strict=True)
                ]
        found.append(row)
    return found


def spread(entries: Sequence[dict]) -> dict:
    """The lowest, the middle and the highest error at one size."""
    errors = [entry["error"] for entry in entries]
    return {
        "sizes": entries[0]["sizes"],
        "low": min(errors),
        "median": round(statistics.median(errors), 4),
        "high": max(errors),
    }


def learned_after(row: dict, largest: tuple[int, ...]) -> int | None:
    """Updates until a run's mean error is below ``LEARNED``; None = never.

    That of new sequences of the largest size has to be, too: an LSTM may know
    all short ones.
    """
    (error,) = (e["error"] for e in row["error"] if e["sizes"] == [*largest])
    for number, mean in enumerate(row["errors"], 1):
        if mean < LEARNED and error < LEARNED:
            return number * EVERY
    return None


def main(cache: Path, tasks: Sequence[str], seeds: Sequence[int]) -> None:
    """Train all that the cache does not hold, and write what came of it."""
    torch.set_num_threads(1)
    rows, runs = [], [key for key in RUNS if key[1] in tasks]
    for (machine, task), seed in product(runs, seeds):
        file = cache / f"{machine}-{task}-{seed}.json".replace(" ", "-")
        rows.append(records.cached(file, run, machine, task, seed))
        print(
            machine,
            task,
            seed,
            rows[-1]["processor_seconds"],
            rows[-1]["errors"][-1],
            rows[-1]["error"],
            flush=True,
        )
    records.write_record(
        "memory",
        rows,
        ("torch",),
        list(seeds),
        threads=1,
        more_slots=MORE_SLOTS,
        learned_below=LEARNED,
        averaged_over=EVERY,
        updates=UPDATES,
        summary=summary(rows),
    )


def check() -> Iterator[records.Checked]:
    """That the summary follows from the runs."""
    found = records.load_record("memory")
    for stored, row in zip(
        found["summary"], summary(found["rows"]), strict=True
    ):
        yield f"{row['machine']}, {row['task']}", stored, row


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cache", type=Path, default=Path("runs/memory"))
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=[*TASKS])
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    records.start(
        lambda: main(options.cache, options.tasks, options.seeds), check
    )
