"""The digits that come with the package."""

import hashlib

import torch

from tests.site import ROOT
from transformer_annotated.after.digits import load_digits

DATA = ROOT / "transformer_annotated/data"


def test_the_file_is_the_one_whose_licence_is_told():
    """Unchanged, with its authors and its licence beside it."""
    digest = hashlib.sha256((DATA / "digits.csv.gz").read_bytes()).hexdigest()
    note = (DATA / "README.md").read_text("utf-8")
    for told in (digest, "Alpaydin", "Kaynak", "Attribution 4.0", "BSD 3"):
        assert told in note


def test_images_and_labels():
    """From 0 to 1 in sixteenths; nearly as many of each digit."""
    images, labels = load_digits()
    assert images.shape == (1797, 8, 8) and labels.shape == (1797,)
    assert (images.dtype, labels.dtype) == (torch.float32, torch.int64)
    sixteenths = images * 16
    assert sixteenths.equal(sixteenths.round())
    assert (images.min(), images.max()) == (0, 1)
    counts = labels.bincount(minlength=10)
    assert counts.sum() == 1797 and 174 <= counts.min() <= counts.max() <= 183


def test_rows_of_pixels_are_rows_of_the_image():
    """The first image is a 0: a ring, upright, with a hole."""
    images, labels = load_digits()
    assert labels[:3].tolist() == [0, 1, 2]
    first = (images[0] * 16).long().tolist()
    assert first[0] == [0, 0, 5, 13, 9, 1, 0, 0]
    assert first[4] == [0, 5, 8, 0, 0, 9, 8, 0]
