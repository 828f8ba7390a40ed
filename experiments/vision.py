"""A ViT beside a CNN: how many images each needs, and what teaches it more.

    python -m experiments.vision [--cache DIR] [--seeds N …] [--fashion DIR]
    python -m experiments.vision --check

Small models of equal size learn the digits from 50 to 1,000 images, as they
are, and with the pixels of all images shuffled in one fixed way. Then a ViT
learns from 200 labels and a teacher; patches are hidden from it; and three
kinds learn Fashion-MNIST, which ``apt-get install dataset-fashion-mnist`` puts
where ``--fashion`` looks for it. A run that the folder ``--cache`` holds is not
repeated. Writes results/vision.json, with the answers to all test images in
results/vision/; ``--check`` computes the accuracies again from these.
"""

import argparse
import gzip
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from experiments import records
from transformer_annotated.after.digits import load_digits
from transformer_annotated.after.vision import (
    KINDS,
    VisionConfig,
    VisionTransformer,
    build_model,
    predict,
    teach,
    train_images,
)
from transformer_annotated.workshop.models import record_attention

SEEDS, FASHION_SEEDS = (0, 1, 2), (0, 1, 2)
POOL, TESTED = 1000, 497  # the first images to learn from, the last to test
SIZES, UPDATES = (50, 100, 200, 400, 1000), 400
IMAGES = ("as they are", "pixels shuffled")
LABELLED, TEMPERATURE = 200, 4.0
TEACHERS = ("CNN, soft, 200", "CNN, hard, 1000", "CNN, soft, 1000",
            "ViT, soft, 1000")  # fmt: skip
SHIFTS = ((0, 1), (0, -1), (1, 0), (-1, 0))  # rows down, columns right
HIDDEN, WAYS = 4, ("most attended", "least attended", "random", "most ink")
FASHION = Path("/usr/share/datasets/fashion-mnist")
FASHION_KINDS = ("CNN", "ViT", "ViT, no positions", "MLP")
FASHION_SIZES, FASHION_UPDATES = (500, 2000), 500
FASHION_POOL, FASHION_TESTED = 8000, 2000
FASHION_PARTS = [*product(IMAGES[:1], FASHION_SIZES), (IMAGES[1], 2000)]
FASHION_CONFIG = VisionConfig(10, 28, 28, 1, 4, 2, 32, 64, 4)
FASHION_WIDTHS = (12, 24, 24)


@cache
def digits(images: str = IMAGES[0]) -> tuple[Tensor, ...]:
    """Images and labels to learn from, and the same to test on."""
    pixels, labels = load_digits()
    pixels = pixels[:, None]
    if images == IMAGES[1]:
        pixels = shuffled(pixels)
    return pixels[:POOL], labels[:POOL], pixels[-TESTED:], labels[-TESTED:]


def shuffled(images: Tensor) -> Tensor:
    """The same images with their pixels in another order, the same for all."""
    chance = torch.Generator().manual_seed(0)
    order = torch.randperm(images[0].numel(), generator=chance)
    return images.flatten(1)[:, order].view_as(images)


def chosen(size: int, seed: int, pool: int = POOL) -> Tensor:
    """Which images a seed learns from."""
    order = torch.randperm(pool, generator=torch.Generator().manual_seed(seed))
    return order[:size]


def written(answers: Tensor) -> str:
    """Classes as a string of digits."""
    return "".join(map(str, answers.tolist()))


def trained(kind: str, images: str, size: int, seed: int) -> nn.Module:
    """A model of a kind, trained on labels; with its losses and seconds."""
    pixels, labels, _, _ = digits(images)
    some = chosen(size, seed)
    torch.manual_seed(seed)
    model, began = build_model(kind), time.process_time()
    model.losses = train_images(
        model, pixels[some], labels[some], UPDATES, seed=seed
    )
    model.seconds = time.process_time() - began
    return model.eval()


def run_digits(kind: str, images: str, size: int, seed: int) -> dict:
    """Train once, and answer for all test images, moved ones too."""
    model = trained(kind, images, size, seed)
    tests = digits(images)[2]
    row = {
        "said": written(predict(model, tests)),
        "loss": round(sum(model.losses[-20:]) / 20, 4),
        "seconds": round(model.seconds, 2),
    }
    if size == POOL and images == IMAGES[0]:
        moved = (moved_by(tests, *shift) for shift in SHIFTS)
        row["moved"] = "".join(written(predict(model, x)) for x in moved)
        if kind == "ViT":
            row["hidden"] = {w: hide(model, tests, w, seed) for w in WAYS}
    return row


def moved_by(images: Tensor, down: int, right: int) -> Tensor:
    """Images moved by some pixels; paper comes in at the other side."""
    x = images.roll((down, right), (2, 3))
    if down:
        x[:, :, 0 if down > 0 else -1] = 0
    if right:
        x[:, :, :, 0 if right > 0 else -1] = 0
    return x


def hide(model: VisionTransformer, images: Tensor, way: str, seed: int) -> str:
    """Answers if four of the patches cannot be looked at."""
    with torch.no_grad(), record_attention(model) as seen:
        model(images)
    looks = seen[-1][:, :, 0, 1:].mean(1)  # (B, N), of the class token
    scores = {
        "most attended": looks,
        "least attended": -looks,
        "random": torch.rand(
            looks.shape, generator=torch.Generator().manual_seed(seed)
        ),
        "most ink": torch.nn.functional.avg_pool2d(images, 2).flatten(1),
    }[way]
    visible = torch.ones_like(looks, dtype=torch.bool)
    visible.scatter_(1, scores.topk(HIDDEN).indices, False)
    with torch.no_grad():
        return written(model(images, visible).argmax(-1))


def run_student(way: str, seed: int) -> dict:
    """A ViT that learns from a teacher, who has seen 200 labels."""
    kind, labels, size = way.split(", ")
    teacher = trained(kind, IMAGES[0], LABELLED, seed)
    pixels, _, tests, _ = digits()
    taught = pixels[chosen(int(size), seed)]
    torch.manual_seed(100 + seed)  # not the teacher's weights
    student = build_model("ViT")
    if labels == "hard":
        train_images(student, taught, predict(teacher, taught), UPDATES,
                     seed=seed)  # fmt: skip
    else:
        targets = teach(teacher, taught, TEMPERATURE)
        train_images(student, taught, targets, UPDATES,
                     temperature=TEMPERATURE, seed=seed)  # fmt: skip
    return {"said": written(predict(student.eval(), tests))}


@cache
def fashion(
    folder: Path, part: str, count: int, images: str
) -> tuple[Tensor, Tensor]:
    """The first images and labels of a part of Fashion-MNIST."""
    data, labels = (
        gzip.decompress((folder / f"{part}-{name}-ubyte.gz").read_bytes())
        for name in ("images-idx3", "labels-idx1")
    )
    pixels = np.frombuffer(data, np.uint8, count * 784, 16).astype(np.float32)
    classes = np.frombuffer(labels, np.uint8, count, 8).astype(np.int64)
    pixels = torch.from_numpy(pixels).view(-1, 1, 28, 28) / 255
    if images == IMAGES[1]:
        pixels = shuffled(pixels)
    return pixels, torch.from_numpy(classes)


def run_fashion(
    kind: str, images: str, size: int, seed: int, folder: Path
) -> dict:
    """Train once on pictures of clothes, and answer for the test images."""
    pixels, labels = fashion(folder, "train", FASHION_POOL, images)
    some = chosen(size, seed, len(pixels))
    torch.manual_seed(seed)
    model = build_model(kind, FASHION_CONFIG, FASHION_WIDTHS)
    losses = train_images(
        model, pixels[some], labels[some], FASHION_UPDATES, seed=seed
    )
    tests, truth = fashion(folder, "t10k", FASHION_TESTED, images)
    said = torch.cat([predict(model.eval(), x) for x in tests.split(500)])
    loss = round(sum(losses[-20:]) / 20, 4)
    return {"said": written(said), "truth": written(truth), "loss": loss}


def cached(folder: Path, name: str, make: Callable[[], dict]) -> dict:
    """What a run has answered before; or run, and write it down."""
    file = folder / (name.replace(", ", "-").replace(" ", "-") + ".json")
    print(name, flush=True)
    return records.cached(file, make)


def collect(
    folder: Path, seeds: Sequence[int], clothes: Path
) -> tuple[dict[str, list[str]], list[dict]]:
    """Answers of all runs, by experiment, and how the trainings went."""
    lines = {n: [] for n in ("digits", "moved", "hidden", "taught", "fashion")}
    about = []
    for seed, size, images, kind in product(seeds, SIZES, IMAGES, KINDS):
        name, tab = f"{images}-{kind}-{size}-{seed}", f"{kind}\t{size}\t{seed}"
        row = cached(folder, name, lambda k=kind, i=images, n=size, s=seed:
                     run_digits(k, i, n, s))  # fmt: skip
        lines["digits"].append(f"{images}\t{tab}\t{row['said']}")
        about.append({"images": images, "kind": kind, "size": size,
                      "seed": seed, "loss": row["loss"],
                      "seconds": row["seconds"]})  # fmt: skip
        if "moved" in row:
            lines["moved"].append(f"moved\t{tab}\t{row['moved']}")
        for way, said in row.get("hidden", {}).items():
            lines["hidden"].append(f"{way}\t{tab}\t{said}")
    for seed, way in product(seeds, TEACHERS):
        row = cached(folder, f"taught-{way}-{seed}",
                     lambda w=way, s=seed: run_student(w, s))  # fmt: skip
        lines["taught"].append(f"{way}\tViT\t{LABELLED}\t{seed}\t{row['said']}")
    for seed, (images, size), kind in product(
        FASHION_SEEDS, FASHION_PARTS, FASHION_KINDS
    ):
        name, tab = f"fashion-{images}-{kind}-{size}-{seed}", f"{kind}\t{size}"
        row = cached(folder, name, lambda k=kind, i=images, n=size, s=seed:
                     run_fashion(k, i, n, s, clothes))  # fmt: skip
        if not lines["fashion"]:
            lines["fashion"].append(f"truth\t\t0\t0\t{row['truth']}")
        lines["fashion"].append(f"{images}\t{tab}\t{seed}\t{row['said']}")
        about.append({"images": f"clothes, {images}", "kind": kind,
                      "size": size, "seed": seed,
                      "loss": row["loss"]})  # fmt: skip
    return lines, about


def summary(lines: dict[str, list[str]]) -> list[dict]:
    """Accuracies of all runs, from their answers."""
    truth, rows = written(digits()[3]), []
    for name, some in lines.items():
        right = truth * len(SHIFTS) if name == "moved" else truth
        for line in some:
            way, kind, size, seed, said = line.split("\t")
            if way == "truth":
                right = said
                continue
            hits = sum(a == b for a, b in zip(said, right, strict=True))
            rows.append({"experiment": name, "way": way, "kind": kind,
                         "size": int(size), "seed": int(seed),
                         "accuracy": round(hits / len(right), 4)})  # fmt: skip
    return rows


def main(folder: Path, seeds: Sequence[int], clothes: Path) -> None:
    """Train all that the cache does not hold, and write what came of it."""
    torch.set_num_threads(1)
    lines, about = collect(folder, seeds, clothes)
    sizes = {k: build_model(k) for k in KINDS}
    for kind in FASHION_KINDS:
        model = build_model(kind, FASHION_CONFIG, FASHION_WIDTHS)
        sizes[f"{kind}, clothes"] = model
    records.write_record(
        "vision",
        summary(lines),
        ("torch",),
        list(seeds),
        outputs=lines,
        threads=1,
        updates=UPDATES,
        tested=TESTED,
        fashion_seeds=list(FASHION_SEEDS),
        fashion_updates=FASHION_UPDATES,
        fashion_tested=FASHION_TESTED,
        temperature=TEMPERATURE,
        parameters={
            name: sum(p.numel() for p in model.parameters() if p.requires_grad)
            for name, model in sizes.items()
        },
        trainings=about,
    )


def check() -> Iterator[records.Checked]:
    """Accuracies, computed again from stored answers and the digits."""
    found = records.load_record("vision")
    yield from records.check_stored(found)
    lines = {name: records.output(found, name) for name in found["outputs"]}
    for stored, row in zip(found["rows"], summary(lines), strict=True):
        name = "{experiment}, {way}, {kind}, {size}, {seed}".format(**row)
        yield name, stored, row


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cache", type=Path, default=Path("runs/vision"))
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--fashion", type=Path, default=FASHION)
    parser.add_argument("--check", action="store_true")
    o = parser.parse_args()
    records.start(lambda: main(o.cache, o.seeds, o.fashion), check)
