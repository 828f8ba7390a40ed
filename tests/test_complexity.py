"""Operations counted on paper are those that PyTorch counts."""

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from transformer_annotated.complexity import (
    SUSTAINED_FLOPS,
    forward_flops,
    training_flops,
    training_step_flops,
)
from transformer_annotated.model import (
    Transformer,
    TransformerConfig,
    parameter_count,
)
from transformer_annotated.workshop.files import paper_tables

PAPER = paper_tables()
TABLE = {row["model"]: row for row in PAPER["table2"]}
BASE, BIG = TABLE["Transformer (base model)"], TABLE["Transformer (big)"]
SMALL = TransformerConfig(50, layers=2, d_model=16, d_ff=32, heads=4)


@pytest.mark.parametrize("sizes", [(30, 25), (1, 1), (3, 40)])
@pytest.mark.parametrize(
    "config",
    [SMALL, replace(SMALL, d_k=3, pre_norm=True, attention_bias=True)],
    ids=["paper", "not"],
)
def test_operations_follow_from_the_config(config, sizes):
    """The closed form counts what torch's counter sees."""
    source, target = sizes
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        src = torch.ones(1, source, dtype=torch.long)
        tgt = torch.ones(1, target, dtype=torch.long)
        Transformer(config)(src, tgt)
    assert counter.get_total_flops() == forward_flops(config, source, target)


@pytest.mark.parametrize(
    ("sizes", "steps", "cost", "fraction"),
    [
        (TransformerConfig.base, 1e5, 3.3e18, 0.29),
        (TransformerConfig.big, 3e5, 2.3e19, 0.42),
    ],
)
def test_operations_beside_the_papers_estimate(sizes, steps, cost, fraction):
    """Three times a forward pass, and the fractions that the chapter names."""
    config = sizes(37_000)
    rule = 6 * parameter_count(config) * 25_000  # forward, and twice back
    assert training_step_flops(config) == pytest.approx(rule, rel=0.02)
    assert training_step_flops(config) * steps / cost == pytest.approx(
        fraction, abs=0.005
    )
    assert training_step_flops(config, 50_000) == 2 * training_step_flops(
        config
    )
    assert training_step_flops(config, length=100) > training_step_flops(
        config, length=10
    )


def test_training_cost_is_time_and_gpus_and_speed():
    """The paper's two figures, from its hours."""
    assert training_flops(1, 1, "K40") == 3600 * 3.7e12
    assert f"{training_flops(12, 8):.1e}" == f"{BASE['flops']:.1e}"
    assert f"{training_flops(3.5 * 24, 8):.1e}" == f"{BIG['flops']:.1e}"


def test_the_speeds_assumed():
    """Those of the paper's footnote."""
    tera = {name: speed / 1e12 for name, speed in SUSTAINED_FLOPS.items()}
    assert tera == PAPER["training"]["tflops_assumed"]
    assert tera == {"K80": 2.8, "K40": 3.7, "M40": 6.0, "P100": 9.5}
    with pytest.raises(ValueError, match=r"unknown GPU, 'P10'.*'P100'"):
        training_flops(1, 1, "P10")
