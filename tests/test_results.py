"""What the paper reports, as quoted here, and what follows from it."""

import json

import pytest

from tests.site import ROOT
from transformer_annotated.evaluation import SUSTAINED, training_flops

PAPER = json.loads((ROOT / "results/paper.json").read_text("utf-8"))
TABLE = {row["model"]: row for row in PAPER["table2"]}
BASE, BIG = TABLE["Transformer (base model)"], TABLE["Transformer (big)"]
OTHERS = [row for row in TABLE.values() if row not in (BASE, BIG)]


def test_table_2_is_quoted_right():
    """Ten models, with the scores and costs that the paper prints."""
    assert len(TABLE) == 10
    german = {n: row["en_de"] for n, row in TABLE.items() if "en_de" in row}
    assert list(german.values()) == [
        *(23.75, 24.6, 25.16, 26.03),
        *(26.3, 26.36, 27.3, 28.4),
    ]
    french = [row["en_fr"] for row in TABLE.values() if "en_fr" in row]
    assert french == [
        *(39.2, 39.92, 40.46, 40.56),
        *(40.4, 41.16, 41.29, 38.1, 41.8),
    ]
    costs = [row.get("flops_en_de") for row in OTHERS]
    assert costs == [None, None, 2.3e19, 9.6e18, 2e19, None, 1.8e20, 7.7e19]
    costs = [row.get("flops_en_fr") for row in OTHERS]
    assert costs == [None, 1e20, 1.4e20, 1.5e20, 1.2e20, 8e20, 1.1e21, 1.2e21]


def test_the_claims_about_table_2():
    """What the text says of the models follows from the table."""
    best = max(row.get("en_de", 0) for row in OTHERS)
    assert BIG["en_de"] - best > 2.0
    assert BASE["en_de"] > best
    assert all(
        BASE["flops"] < row["flops_en_de"]
        for row in OTHERS
        if "flops_en_de" in row
    )
    single = [row for row in OTHERS if "Ensemble" not in row["model"]]
    champion = max(single, key=lambda row: row.get("en_fr", 0))
    assert BIG["en_fr"] > champion["en_fr"]
    assert BIG["flops"] < champion["flops_en_fr"] / 4


def test_training_cost_is_time_and_gpus_and_speed():
    """The paper's two figures, from its hours."""
    assert training_flops(1, 1, "K40") == 3600 * 3.7e12
    assert f"{training_flops(12, 8):.1e}" == f"{BASE['flops']:.1e}"
    assert f"{training_flops(3.5 * 24, 8):.1e}" == f"{BIG['flops']:.1e}"


def test_the_speeds_assumed():
    """Those of the paper's footnote."""
    tera = {name: speed / 1e12 for name, speed in SUSTAINED.items()}
    assert tera == PAPER["training"]["tflops_assumed"]
    assert tera == {"K80": 2.8, "K40": 3.7, "M40": 6.0, "P100": 9.5}
    with pytest.raises(ValueError, match=r"unknown GPU, 'P10'.*'P100'"):
        training_flops(1, 1, "P10")
