"""Charts of captions: a click on a word chooses the map that is drawn."""

from tests.charts.drawing import drawn
from transformer_annotated.charts.captions import caption_maps

WORDS = [
    {"scene": scene, "at": at, "word": word}
    for scene in ("one", "two")
    for at, word in enumerate(["a", "three"])
]
PIXELS = [{"scene": "one", "x": 3, "y": 4, "ink": 0.5}]
WEIGHTS = [
    {"scene": "one", "look": look, "at": 1, "x": 2, "y": 3, "weight": 0.9}
    for look in ("layer 1", "layer 2")
]
CELLS = [{"scene": "one", "at": 1, "x": 1, "y": 1}]


def test_words_pixels_maps_and_cells_are_drawn():
    """Each from its own rows; menus choose the scene and who looks."""
    spec = drawn(caption_maps(WORDS, PIXELS, WEIGHTS, CELLS))
    names = {param["name"] for param in spec["params"]}
    assert {"scene", "look", "picked"} <= names
    strip, picture = spec["vconcat"]
    ink, seen, gold = picture["layer"]
    data = [
        part.get("data", picture.get("data"))["values"]
        for part in (ink, seen, gold)
    ]
    assert data == [PIXELS, WEIGHTS, CELLS]
    assert strip["data"]["values"] == WORDS


def test_the_map_is_that_of_the_word_that_was_clicked():
    """The selection filters maps and cells, and begins at a digit's word."""
    spec = drawn(caption_maps(WORDS, PIXELS, WEIGHTS, CELLS))
    (picked,) = (p for p in spec["params"] if p["name"] == "picked")
    assert picked["value"] == [{"at": 1}]
    assert picked["select"]["fields"] == ["at"]
    ink, *others = spec["vconcat"][1]["layer"]
    by_word = {"filter": {"param": "picked", "empty": False}}
    assert by_word not in ink["transform"]
    for layer in others:
        assert by_word in layer["transform"]


def test_squares_have_the_size_of_places_and_cells():
    """A place is four pixels wide, a cell eight."""
    spec = drawn(caption_maps(WORDS, PIXELS, WEIGHTS, CELLS))
    for layer, size in zip(spec["vconcat"][1]["layer"], (1, 4, 8), strict=True):
        formulas = {
            step["as"]: step["calculate"]
            for step in layer["transform"]
            if "calculate" in step
        }
        assert formulas["x1"] == f"datum.x * {size} + {size}"
        assert formulas["y0"] == f"datum.y * {size} + 0"
