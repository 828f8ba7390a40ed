"""Captions of scenes of digits: how many are right, and where they look.

    python -m experiments.captions [--cache DIR] [--seeds N …] [--check]

Trains the paper's decoder and the LSTM with attention to caption pictures of
two digits, with three seeds each, and asks them about scenes with digits that
were not trained on. The cell of each digit is known, so it can be counted how
often the attention lies on it. Writes results/captions.json, and every caption
with the cells looked at to the folder results/captions, from which ``--check``
computes all counts again.
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from experiments import records
from transformer_annotated.after.captions import (
    CAPTIONERS,
    Scenes,
    draw_scenes,
    find_looks,
    train_captioner,
    words_of,
    write_captions,
)
from transformer_annotated.model import shift_right

SEEDS = (0, 1, 2)
STEPS, TEST = 2000, 500  # updates; scenes
SHOWN = 5  # scenes on the page, and as many with a mistake


def test_scenes() -> Scenes:
    """The scenes that all models are asked about."""
    chance = torch.Generator().manual_seed(2**20)
    return draw_scenes(TEST, chance, test=True)


def run(kind: str, seed: int) -> tuple[dict, list[str]]:
    """Train a captioner once, and ask it about all scenes."""
    began = time.process_time()
    model, losses = train_captioner(kind, seed, STEPS)
    seconds = round(time.process_time() - began, 1)
    scenes = test_scenes()
    looks = find_looks(model, scenes)
    texts = write_captions(model, scenes.images)
    lines = [
        json.dumps([text, named, cells])
        for text, named, cells in zip(
            texts,
            looks.named.tolist(),
            looks.cells.transpose(0, 1).tolist(),
            strict=True,
        )
    ]
    row = {"captioner": kind, "seed": seed, "processor_seconds": seconds}
    row["parameters"] = sum(p.numel() for p in model.parameters())
    row["loss"] = [
        round(sum(losses[i : i + 100]) / 100, 3) for i in range(0, STEPS, 100)
    ]
    mass = looks.on_digit.mean(1)  # (layers, 2)
    row["weight_on_digit"] = [[round(x, 3) for x in y] for y in mass.tolist()]
    return row | {"shown": shown(model, scenes, lines)}, lines


def shown(model: object, scenes: Scenes, lines: Sequence[str]) -> list[dict]:
    """Maps of the first scenes, and of the first with a wrong digit."""
    wrong = [
        i
        for i, line in enumerate(lines)
        if json.loads(line)[1] != scenes.digits[i].tolist()
    ]
    some = list(dict.fromkeys([*range(SHOWN), *wrong[:SHOWN]]))
    inputs, _ = shift_right(scenes.captions[some])
    maps = model.maps(scenes.images[some], inputs)  # (layers, n, T, 36)
    return [
        {
            "scene": scene,
            "maps": [
                [t, layer, place, round(maps[layer, i, t, place].item(), 2)]
                for layer, t, place in (maps[:, i] > 0.03).nonzero().tolist()
            ],
        }
        for i, scene in enumerate(some)
    ]


def summary(kind: str, seed: int, lines: Sequence[str]) -> dict:
    """Counts of one model, from its captions and where it looked."""
    scenes = test_scenes()
    texts, named, cells = zip(*map(json.loads, lines), strict=True)
    gold = [" ".join(words_of(ids)) for ids in scenes.captions.tolist()]
    named, cells = torch.tensor(named), torch.tensor(cells)  # (B, layers, 2)
    right = named == scenes.digits  # (B, 2)
    on_cell = cells == scenes.cells[:, None]  # (B, layers, 2)
    row = {
        "captioner": kind,
        "seed": seed,
        "exact": sum(map(str.__eq__, texts, gold)),
        "digits_right": right.sum().item(),
        "on_cell": on_cell.sum(0).tolist(),  # by layer and word
    }
    other = scenes.digits.flip(1), scenes.cells.flip(1)
    row["words"] = []
    for layer in range(cells.size(1)):
        there = on_cell[:, layer]
        swapped = (named == other[0]) & (cells[:, layer] == other[1])
        counts = {
            "right, on the digit": right & there,
            "right, elsewhere": right & ~there,
            "wrong, on the digit": ~right & there,
            "wrong, named what it looked at": ~right & ~there & swapped,
            "wrong, elsewhere": ~right & ~there & ~swapped,
        }
        row["words"].append({k: v.sum().item() for k, v in counts.items()})
    return row


def main(cache: Path, seeds: Sequence[int]) -> None:
    """Train all that the cache does not hold, and write what came of it."""
    torch.set_num_threads(1)
    rows, outputs, counts = [], {}, []
    for seed in seeds:
        for kind in CAPTIONERS:
            file = cache / f"captions-{kind}-{seed}.json"
            row, lines = records.cached(file, run, kind, seed)
            for entry in row["shown"]:
                entry["named"] = json.loads(lines[entry["scene"]])[1]
            rows.append(row)
            outputs[f"{kind}-{seed}"] = lines
            counts.append(summary(kind, seed, lines))
            print(row["processor_seconds"], row["loss"][-1], counts[-1])
    records.write_record(
        "captions",
        rows,
        ("torch",),
        list(seeds),
        outputs=outputs,
        threads=1,
        updates=STEPS,
        scenes=TEST,
        summary=counts,
    )


def check() -> Iterator[records.Checked]:
    """That outputs are those of the record, and all counts follow."""
    found = records.load_record("captions")
    yield from records.check_stored(found)
    for stored in found["summary"]:
        kind, seed = stored["captioner"], stored["seed"]
        lines = records.output(found, f"{kind}-{seed}")
        yield f"{kind}, seed {seed}", stored, summary(kind, seed, lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cache", type=Path, default=Path("runs/captions"))
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    records.start(lambda: main(options.cache, options.seeds), check)
