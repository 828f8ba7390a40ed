"""What bad input gets: one line, which names the value and what to do."""

from dataclasses import dataclass

import numpy as np
import pytest

from transformer_annotated.workshop.checks import (
    check_at_least,
    check_rate,
    check_text,
    check_texts,
    check_types,
    first_line,
    suggestion,
    unknown_name,
)


@dataclass
class Config:
    """One field of each type that recipes have."""

    size: int = 1
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
        ({"size": 1.0}, "size: 1.0, expected int"),
        ({"size": True}, "size: True, expected int"),
        ({"size": -1}, "size: -1, expected 0 or more"),
        ({"rate": "0.5"}, "rate: '0.5', expected float"),
        ({"rate": float("inf")}, "rate: inf, expected 0 or more"),
        ({"name": 3}, "name: 3, expected str"),
        ({"on": 1}, "on: 1, expected bool"),
    ],
)
def test_fields_have_the_declared_types(change, message):
    """A whole number does for a fraction, and nothing else for another."""
    check_types(Config(rate=2))
    with pytest.raises(ValueError, match=f"^{message}$"):
        check_types(Config(**change))


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
