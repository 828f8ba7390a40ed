"""Good files become pairs, bad ones a clear line, and parts share nothing."""

import os
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import ENGLISH, GERMAN, PAIRS, gz, write, xz
from transformer_annotated.workshop.files import CorpusError
from transformer_annotated.workshop.parallel import (
    FilePairs,
    Subset,
    file_states,
    has_changed,
    hold_out,
    overlap,
    read_pairs,
)


@pytest.mark.parametrize("packed", [None, "gz", "xz"])
@pytest.mark.parametrize("hold", [2**26, 0])
def test_parallel_files_give_pairs_line_by_line(tmp_path, packed, hold):
    """Plain or packed, in memory or streamed, twice, and by index."""
    end = f".{packed}" if packed else ""
    a = write(tmp_path / f"a.en{end}", ENGLISH, packed)
    b = write(tmp_path / f"a.de{end}", GERMAN, packed)
    pairs = FilePairs(a, b, hold=hold)
    assert len(pairs) == 4
    assert list(pairs) == list(pairs) == PAIRS
    assert [pairs[i] for i in range(4)] == PAIRS
    assert pairs[-1] == PAIRS[-1]
    with pytest.raises(IndexError):
        pairs[4]
    swapped = FilePairs(a, b, swap=True, hold=hold)
    assert list(swapped) == [pair[::-1] for pair in PAIRS]


def test_packed_files_need_no_ending(tmp_path):
    """What is packed shows by its first bytes, whatever its name."""
    path = tmp_path / "train"
    for pack in (gz, xz):
        path.write_bytes(pack(b"a\tb\n"))
        assert list(read_pairs(path)) == [("a", "b")]


def test_large_files_are_streamed_and_small_ones_held(tmp_path):
    """One character over the limit, and pairs are read again by each loop."""
    path = write(tmp_path / "a.tsv", ["ab\tc", "d\tef"])  # 6 + 1 for each pair
    assert FilePairs(path, hold=8)._held is not None
    assert read_pairs(path)._held is not None
    large = FilePairs(path, hold=7)
    assert large._held is None
    assert list(large) == [("ab", "c"), ("d", "ef")]
    path.write_text("other\tpairs\nand\tmore\n")
    with pytest.raises(CorpusError, match=r"a\.tsv: changed since"):
        list(large)


def test_streaming_takes_no_memory(tmp_path):
    """What is too large to hold is not collected on the way either."""
    path = write(tmp_path / "a.tsv", ["some words\tand others"] * 20_000)
    tracemalloc.start()
    pairs = FilePairs(path, hold=1000)
    assert sum(1 for _ in pairs) == 20_000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 500_000  # all pairs take five times that


def test_a_table_has_one_tab_a_line(tmp_path):
    """Blank lines and Tatoeba's third column pass, other columns do not."""
    path = tmp_path / "a.tsv"
    write(path, ["Go.\tGeh.\tCC-BY 2.0 (France): tatoeba.org", "", " x \ty"])
    assert list(read_pairs(path)) == [("Go.", "Geh."), ("", ""), (" x ", "y")]
    for line, tabs in (("no tab", 0), ("a\tb\tc", 2), ("a\tb\tc\tCC-BY", 3)):
        write(path, ["a\tb", line])
        with pytest.raises(CorpusError, match=rf"a\.tsv, line 2: {tabs} tabs"):
            read_pairs(path)


def test_only_line_feeds_end_lines(tmp_path):
    """Separators at which str.splitlines splits stay inside a sentence."""
    odd = "one\x0btwo\x0cthree\x1cfour\x85five\u2028six\u2029seven\reight"
    assert len(odd.splitlines()) == 8
    a = write(tmp_path / "a", [odd, "b"])
    b = write(tmp_path / "b", ["c", odd])
    assert list(read_pairs(a, b)) == [(odd, "c"), ("b", odd)]


def test_marks_of_windows_are_removed(tmp_path):
    """Byte order marks and carriage returns before line feeds go away."""
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    b.write_bytes(b"eins\nzwei")
    assert list(read_pairs(a, b)) == [("one", "eins"), ("two", "zwei")]
    a.write_bytes("one\n\ufefftwo\n".encode())  # only the first is a mark
    assert list(read_pairs(a, b))[1] == ("\ufefftwo", "zwei")


@pytest.mark.parametrize(("left", "right"), [(3, 5), (5, 3), (0, 2), (2, 0)])
def test_files_of_different_length_are_refused(tmp_path, left, right):
    """The message has both files and both counts."""
    a = write(tmp_path / "a.en", ["x"] * left)
    b = write(tmp_path / "a.de", ["y"] * right)
    with pytest.raises(CorpusError) as error:
        read_pairs(a, b)
    assert f"a.en: {left} lines" in str(error.value)
    assert f"a.de: {right} lines" in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\tb\na\tb\nM\xfc\tb\n", r"line 3: not UTF-8 \(byte 2"),
        (b"a\tb\n\xed\xa0\x80\n", r"line 2: not UTF-8"),  # a surrogate
        (b"a\tb\na\0b\n", "line 2: a zero byte"),
        ("text".encode("utf-16"), r"line 1: (not UTF-8|a zero byte)"),
        (b"", "empty"),
        (b"\n \n\t\n", "no pair with text on both sides"),
        (gz(b"\t\xc3\x28\n" * 99), "line 1: not UTF-8"),
        (xz(b"text\tmore\n" * 5000)[:-20], "cut short"),
        (gz(b"a\tb\n" * 5000)[:-9], "damaged or cut short"),
        (gz(b"a\tb\n" * 9)[:15] + b"\xff" * 40, "damaged"),
    ],
    ids=map(str, range(10)),
)
def test_damaged_files_are_named(tmp_path, content, message):
    """One line with the file, and the line where there is one."""
    path = tmp_path / "bad.tsv"
    path.write_bytes(content)
    for files in ((path,), (path, path)):
        with pytest.raises(CorpusError, match=message) as error:
            read_pairs(*files)
        assert "bad.tsv" in str(error.value)
        assert "\n" not in str(error.value)


def test_a_packed_name_on_plain_text_is_refused(tmp_path):
    """A .gz file that is none was probably damaged on its way."""
    for end in ("gz", "xz"):
        path = write(tmp_path / f"a.tsv.{end}", ["a\tb"])
        with pytest.raises(CorpusError, match=f"not a .{end} file"):
            read_pairs(path)


def test_missing_files_get_the_nearest_name(tmp_path):
    """Folders, missing files and odd paths each have a message."""
    write(tmp_path / "train.en", ["a"])
    with pytest.raises(CorpusError, match=r"did you mean 'train\.en'\?"):
        read_pairs(tmp_path / "trian.en", tmp_path / "train.en")
    with pytest.raises(CorpusError, match="a folder, expected a file"):
        read_pairs(tmp_path)
    with pytest.raises(CorpusError, match="no such file"):
        read_pairs(tmp_path / "nowhere" / "x")
    with pytest.raises(CorpusError):
        read_pairs("a\0b")
    with pytest.raises(CorpusError):
        read_pairs("x" * 5000)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CorpusError, match="expected a regular file"):
        read_pairs(tmp_path / "pipe")


@given(left=st.binary(max_size=60), right=st.binary(max_size=60))
def test_any_bytes_are_pairs_or_a_clear_error(tmp_path_factory, left, right):
    """No bytes crash the reader or shift one side against the other."""
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "a").write_bytes(left)
    (folder / "b").write_bytes(right)
    for files in ((folder / "a", folder / "b"), (folder / "a",)):
        try:
            pairs = list(read_pairs(*files))
        except CorpusError as error:
            message = str(error)
            assert "\n" not in message.replace(str(folder), "")
            continue
        lines = left.removeprefix(b"\xef\xbb\xbf").removesuffix(b"\n")
        assert len(pairs) == lines.count(b"\n") + 1
        assert all("\n" not in side for pair in pairs for side in pair)
        if len(files) == 2:
            ours = [line.rstrip(b"\r") for line in lines.split(b"\n")]
            assert [pair[0].encode() for pair in pairs] == ours


@given(data=st.binary(min_size=1, max_size=200), cut=st.integers(1, 30))
def test_any_cut_of_a_packed_file_is_noticed(tmp_path_factory, data, cut):
    """A file that lost its end never passes for a shorter one."""
    folder = tmp_path_factory.mktemp("cut")
    for end, pack in (("gz", gz), ("xz", xz)):
        path = folder / f"a.{end}"
        packed = pack(b"a\tb\n" + data)
        path.write_bytes(packed[: max(len(packed) - cut, 3)])
        with pytest.raises(CorpusError):
            read_pairs(path)


@given(place=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_any_flipped_bit_of_a_packed_file_is_noticed(
    tmp_path_factory, place, bit
):
    """Or it makes no difference, as in the header's date."""
    folder = tmp_path_factory.mktemp("flip")
    lines = [f"{i * i} dogs\t{i * i} Hunde" for i in range(40)]
    expected = [tuple(line.split("\t")) for line in lines]
    for end in ("gz", "xz"):
        path = write(folder / f"a.{end}", lines, end)
        content = bytearray(path.read_bytes())
        content[place % len(content)] ^= 1 << bit
        path.write_bytes(content)
        try:
            assert list(read_pairs(path)) == expected
        except CorpusError as error:
            assert f"a.{end}" in str(error)


def test_overlap_counts_each_side():
    """Case and blanks make no difference, but the side does."""
    ours = [("A  dog", "x"), ("cat", "Y"), ("y", "a dog")]
    theirs = [("a dog ", "q"), ("bird", "y")]
    assert overlap(ours, theirs) == (1, 1)
    assert overlap(ours, []) == (0, 0)


def test_held_out_pairs_share_nothing_with_the_rest():
    """Repeated sentences stay in the first part, and nothing is lost."""
    pairs = [(f"s {i // 2}", f"t {i}") for i in range(100)]  # sources twice
    pairs += [(f"u {i}", f"v {i % 7}") for i in range(100)]  # targets often
    pairs += [(f"S  {900 + i}", f"T {900 + i}") for i in range(50)]
    pairs += [(f"s {900 + i}", "") for i in range(10)] + [("", "")] * 3
    train, valid = hold_out(pairs, 20)
    assert len(valid) == 20
    assert sorted([*train, *valid]) == sorted(pairs)
    assert overlap(valid, train) == (0, 0)
    assert all(a.startswith("S") and b for a, b in valid)
    assert [p for p in pairs if p in set(valid)] == list(valid)  # in order
    assert list(hold_out(pairs, 20)[1]) == list(valid)
    assert list(hold_out(pairs, 20, seed=1)[1]) != list(valid)


def test_blank_pairs_are_not_held_out():
    """A blank side says nothing, even if no other is blank."""
    pairs = [("a", "b")] * 40 + [("x", ""), (" ", "y"), ("u", "v")]
    assert list(hold_out(pairs, 4)[1]) == [("u", "v")]


def test_held_out_pairs_are_at_most_a_tenth():
    """Small corpora keep most of their pairs; hopeless ones are refused."""
    pairs = [(f"s {i}", f"t {i}") for i in range(50)]
    train, valid = hold_out(pairs, 1000)
    assert (len(train), len(valid)) == (45, 5)
    assert [len(part) for part in hold_out(pairs[:2], 1000)] == [1, 1]
    for hopeless in (
        pairs[:1],
        [("a", "b")] * 9,
        [("a", str(i)) for i in "xy"],
    ):
        with pytest.raises(CorpusError, match="give files for validation"):
            hold_out(hopeless, 5)
    with pytest.raises(ValueError, match="size: 0"):
        hold_out(pairs, 0)


def test_parts_are_views():
    """A part of pairs has their order, its length, and indices of its own."""
    part = Subset(PAIRS, np.array([True, False, False, True]))
    assert len(part) == 2
    assert list(part) == [part[0], part[1]] == [PAIRS[0], PAIRS[3]]
    assert part[-1] == PAIRS[3]
    other = Subset(PAIRS, np.array([True, False, True, False]))
    assert part.digest != other.digest


def test_a_changed_file_is_noticed_and_a_touched_one_is_not(tmp_path):
    """By its size, or by a digest if only the time has changed."""
    path = write(tmp_path / "a.tsv", ["a\tb", "c\td"])
    pairs = FilePairs(path)
    part = Subset(pairs, np.array([True, False]))
    (state,) = file_states(part).values()
    assert file_states(pairs) == {str(path): state}
    assert file_states([("a", "b")]) == {}
    assert not has_changed(path, state)
    os.utime(path, ns=(1, 1))
    assert not has_changed(path, state)
    with pytest.raises(CorpusError, match="changed since it was opened"):
        file_states(pairs)
    write(path, ["a\tb", "c\tx"])
    os.utime(path, ns=(2, 2))
    assert has_changed(path, state)
    write(path, ["a\tb"])
    assert has_changed(path, state)
