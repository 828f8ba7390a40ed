"""What bad input gets: one line, which names the value and what to do."""

import re
from dataclasses import dataclass, fields

import numpy as np
import pytest

from transformer_annotated.layers import TransformerConfig
from transformer_annotated.training import TrainingConfig
from transformer_annotated.workshop.checks import (
    LIMITS,
    check_at_least,
    check_fields,
    check_rate,
    check_text,
    check_texts,
    first_line,
    shown,
    suggestion,
    unknown_name,
)
from transformer_annotated.workshop.recipe import CorpusConfig, TokenizerConfig


@dataclass
class Config:
    """One field of each type that recipes have."""

    layers: int = 1
    d_k: int | None = None
    clip: float = 0.5
    rate: float = 0.5
    name: str = "x"
    on: bool = False


def test_sizes():
    """Whole numbers of any kind pass, and what is not given."""
    check_at_least(1, a=1, b=np.int64(3), c=None)
    check_at_least(0, a=0)


@pytest.mark.parametrize("wrong", [True, 2.0, "3", [1]])
def test_sizes_that_are_no_ints(wrong):
    """Not even those that Python would take for one."""
    with pytest.raises(ValueError, match=r"^heads: .*, expected an int$"):
        check_at_least(1, heads=wrong)


def test_sizes_too_small():
    """The limit is named."""
    with pytest.raises(ValueError, match=r"^heads: 0, expected at least 1$"):
        check_at_least(1, d_k=None, heads=0)


@pytest.mark.parametrize("wrong", [-0.1, 1, 1.0, True, "0.1", None, np.nan])
def test_rates(wrong):
    """From 0 to below 1."""
    check_rate(dropout=0, other=0.999)
    with pytest.raises(ValueError, match=r"^dropout: .* 0 <= dropout < 1$"):
        check_rate(dropout=wrong)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": 1.0}, "layers: 1.0, expected an int"),
        ({"layers": True}, "layers: True, expected an int"),
        ({"layers": None}, "layers: None, expected an int"),
        ({"layers": 0}, "layers: 0, expected at least 1"),
        ({"layers": 1001}, "layers: 1001, expected at most 1,000"),
        ({"d_k": 0}, "d_k: 0, expected at least 1"),
        ({"d_k": 2.0}, "d_k: 2.0, expected an int"),
        ({"clip": "0.5"}, "clip: '0.5', expected a number"),
        ({"clip": float("inf")}, "clip: inf, expected at most 1,000,000,000.0"),
        ({"clip": float("nan")}, "clip: nan, expected at least 0"),
        ({"rate": 1}, "rate: 1, expected 0 <= rate < 1"),
        ({"name": 3}, "name: 3, expected a str"),
        (
            {"name": "x" * 1001},
            f"name: '{'x' * 75} ..., too long; expected at most 1,000 letters",
        ),
        ({"on": 1}, "on: 1, expected True or False"),
    ],
)
def test_fields_have_the_declared_types_and_limits(change, message):
    """A whole number does for a fraction, and nothing else for another."""
    check_fields(Config(clip=2, rate=0, d_k=8))
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        check_fields(Config(**change))


@pytest.mark.parametrize(
    "kind", [CorpusConfig, TokenizerConfig, TransformerConfig, TrainingConfig]
)
def test_every_number_of_a_recipe_has_two_ends(kind):
    """None is accepted that would overflow torch, or start 2**32 processes."""
    given = {"vocab_size": 300} if kind is TransformerConfig else {}
    numbers = [f for f in fields(kind) if f.type in (int, float, int | None)]
    assert len(numbers) > 2
    for part in numbers:
        for wrong in (-1, 2**31 * 10, 2**64, 10**400, 16**9999):
            if 0 < wrong < {"seed": 2**63, "factor": 1e30}.get(part.name, 0):
                continue
            with pytest.raises(ValueError, match=rf"^{part.name}: ") as found:
                kind(**given | {part.name: wrong})
            assert len(str(found.value)) < 200


def test_limits_leave_room_for_the_largest_models_there_are():
    """Whoever reaches one has made a mistake."""
    TransformerConfig(
        256_000, 118, 18_432, 73_728, 128, learned_positions=2**17
    )
    assert all(low < high for low, high in LIMITS.values())


def test_a_value_is_shown_in_a_line():
    """Whatever its size; Python itself refuses to write some numbers."""
    assert shown("a") == "'a'"
    assert shown(16**9999) == "about 2**39997"
    assert shown([16**9999]) == "a list too long to show"
    assert len(shown([1] * 1000)) == 80


def test_text():
    """Half a character, bytes and a single string are found, with a place."""
    assert list(check_texts(["ä", "", "😀"])) == ["ä", "", "😀"]
    with pytest.raises(ValueError, match=r"^text: bytes, expected a str$"):
        check_text("text", b"a")
    with pytest.raises(ValueError, match=r"sentence 1: .*U\+D83D at char.* 2"):
        list(check_texts(["a", "ab\ud83d"]))
    with pytest.raises(ValueError, match=r"^lines: a single str, expected sev"):
        list(check_texts("abc", "lines"))


def test_names():
    """The nearest is asked about; if none is near, all are listed."""
    known = ("copy", "multi30k-en-de")
    assert suggestion("cop", known) == "did you mean 'copy'?"
    assert suggestion("zzz", known) == ""
    assert unknown_name("recipe", "cop", iter(known)) == (
        "unknown recipe, 'cop'; did you mean 'copy'?"
    )
    assert unknown_name("recipe", "zzz", iter(known)) == (
        "unknown recipe, 'zzz'; known: copy, multi30k-en-de"
    )


def test_errors_of_others_in_a_line():
    """The first line, or the type of what says nothing."""
    assert first_line(ValueError("no\nbecause")) == "no"
    assert first_line(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert len(first_line(ValueError("x" * 5000))) == 400
