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


@pytest.fixture(scope="module")
def one_thread():
    """As in other processes, so that sums are added in the same order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def uninterrupted(one_thread, tmp_path_factory):
    """A run that nothing happened to."""
    from tests.runs import go

    folder = tmp_path_factory.mktemp("uninterrupted")
    go(folder)
    return folder
