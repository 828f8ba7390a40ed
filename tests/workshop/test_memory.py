"""A model that cannot fit is refused before anything is built."""

import os
from types import SimpleNamespace

import pytest

from transformer_annotated.model import (
    Transformer,
    TransformerConfig,
    parameter_count,
)
from transformer_annotated.workshop import memory
from transformer_annotated.workshop.memory import (
    build_model,
    check_memory,
    count_parameters,
)

SWITCHES = [
    {},
    {"d_k": 5, "d_v": 7},
    {"attention_bias": True, "d_k": 3},
    {"pre_norm": True},
    {"learned_positions": 9},
]
HUGE = TransformerConfig(2**20, layers=1000, d_model=2**17, d_ff=2**20)


@pytest.mark.parametrize("switches", SWITCHES)
def test_arithmetic_agrees_with_the_model(switches):
    """For every switch that adds parameters."""
    config = TransformerConfig(
        11, layers=3, d_model=8, d_ff=6, heads=2, **switches
    )
    assert count_parameters(config) == parameter_count(config)


def test_a_model_that_cannot_fit_is_not_built(monkeypatch):
    """The line says how many bytes it would take."""
    monkeypatch.setattr(memory, "kind_of", None)
    count = count_parameters(HUGE)
    with pytest.raises(ValueError, match=rf"^x: .* takes {4 * count:,} bytes$"):
        build_model(HUGE, "x")
    with pytest.raises(ValueError, match=rf"train them takes {16 * count:,} b"):
        check_memory(HUGE, training=True)


def test_training_takes_four_times_as_much(monkeypatch):
    """Gradients, and two means of each: in between, a model can be used."""
    config = TransformerConfig.tiny(100)
    pages = {"SC_PHYS_PAGES": 8 * count_parameters(config), "SC_PAGE_SIZE": 1}
    monkeypatch.setattr(os, "sysconf", pages.get)
    assert isinstance(build_model(config), Transformer)
    with pytest.raises(ValueError, match=r"^model: no memory"):
        check_memory(config, training=True)


def test_memory_that_others_have_taken(monkeypatch):
    """What PyTorch says then fills a page."""

    def full(config):
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:127]\nmore")

    monkeypatch.setattr(
        memory, "kind_of", lambda config: SimpleNamespace(model=full)
    )
    with pytest.raises(ValueError, match=r"^model: no memory for"):
        build_model(TransformerConfig.tiny(100))
