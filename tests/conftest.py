"""What all tests share."""

import pytest
import torch
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def seeded():
    """Every test draws the same numbers, in whatever order tests run."""
    torch.manual_seed(0)
