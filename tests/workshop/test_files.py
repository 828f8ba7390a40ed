"""Lines are read with care, and files written to where they are meant."""

import io
import os

import pytest

from transformer_annotated.workshop.files import (
    CorpusError,
    read_lines,
    write_atomically,
)


def test_the_longest_line():
    """As many bytes as are allowed are a sentence, one more is none."""
    for end in (b"\n", b"\r\n", b""):
        lines = read_lines(io.BytesIO(b"a\n" + 9 * b"b" + end), longest=9)
        assert list(lines) == ["a", 9 * "b"]
        lines = read_lines(io.BytesIO(b"a\n" + 10 * b"b" + end), longest=9)
        assert next(lines) == "a"
        with pytest.raises(CorpusError, match="line 2: more than 9 bytes"):
            next(lines)


def test_writing_goes_to_what_is_meant(tmp_path):
    """Behind a link, and into a pipe, which stay what they are."""
    real, link, pipe = (tmp_path / name for name in ("real", "link", "pipe"))
    real.write_text("before")
    link.symlink_to(real)
    write_atomically(link, "after")
    assert link.is_symlink() and real.read_text() == "after"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_atomically(pipe, "through")
    assert os.read(reader, 100) == b"through" and pipe.is_fifo()
    os.close(reader)
    assert sorted(os.listdir(tmp_path)) == ["link", "pipe", "real"]
