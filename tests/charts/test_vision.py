"""Charts of images hold the numbers that they are given."""

import torch

from tests.charts.drawing import drawn
from transformer_annotated.charts.vision import class_token_looks, image_curves


def test_curves_have_a_menu_and_a_bar_for_each_point():
    """From the lowest to the highest seed, for the images that are chosen."""
    rows = [
        {"images": images, "kind": kind, "size": size, "accuracy": 0.5}
        | {"low": 0.25, "high": 0.75}
        for images in ("as they are", "shuffled")
        for kind in ("CNN", "ViT")
        for size in (50, 1000)
    ]
    spec = drawn(image_curves(rows))
    assert "images" in [param["name"] for param in spec["params"]]
    bars, lines = spec["layer"]
    assert bars["encoding"]["y"]["field"] == "low"
    assert bars["encoding"]["y2"]["field"] == "high"
    assert lines["encoding"]["y"]["field"] == "accuracy"
    data = lines.get("data", spec.get("data"))
    assert data["values"] == rows


def test_looks_lie_on_the_patches_of_their_image():
    """Each weight at its place: the image above, a row for each layer."""
    images = torch.zeros(2, 4, 4)
    images[1, 2, 3] = 0.5
    looks = torch.zeros(2, 2, 2, 2)  # layers, images, rows, columns
    looks[1, 0, 1, 0] = 0.75
    spec = drawn(class_token_looks(images, looks, ["a", "b"]))
    ink, weights, words = (part["data"]["values"] for part in spec["layer"])
    assert ink == [{"x": 8, "y": 2 + 5 * row, "ink": 0.5} for row in range(3)]
    assert len(weights) == 16
    [strong] = [row for row in weights if row["weight"]]
    assert strong == {"x": 0, "y": 12, "weight": 0.75, "layer": 2}
    assert [(w["title"], w["x"]) for w in words] == [("a", 2), ("b", 7)]
