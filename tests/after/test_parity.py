"""The table of Part V: model, reference, largest difference."""

import pytest
import torch

from experiments import parity
from transformer_annotated.workshop.files import load_result


def test_every_model_is_the_reference():
    """The table is printed; each difference is below its bound.

    No bound is so wide that another model would pass.
    """
    rows = [row for model in parity.MODELS for row in parity.compare(model)]
    print("\nmodel | reference | part | largest difference | bound")
    for row in rows:
        print(
            f"{row['model']} | {row['reference']} | {row['part']} | "
            f"{row['difference']:.1e} | {row['bound']:.0e}"
        )
    for row in rows:
        assert row["difference"] < row["bound"] <= 2e-5, row
        assert row["bound"] < 1e-3 * row["largest"], row


def test_the_stored_table_has_every_model():
    """With the bounds that are enforced here."""
    stored = load_result("parity")["rows"]
    bounds = {row["model"]: row["bound"] for row in stored}
    assert bounds == {m: bound for m, (_, bound, _) in parity.MODELS.items()}
    for row in stored:
        assert row["difference"] < row["bound"]


@pytest.mark.parametrize("model", parity.MODELS)
def test_a_wrong_parameter_would_be_seen(model, monkeypatch):
    """One more in a thousand on our side is far outside of the bound."""
    theirs, bound, compared = parity.MODELS[model]

    def wrong():
        return {
            part: (1.001 * mine, other)
            for part, (mine, other) in compared().items()
        }

    monkeypatch.setitem(parity.MODELS, model, (theirs, bound, wrong))
    for row in parity.compare(model):
        assert row["difference"] > bound
    assert torch.is_grad_enabled()
