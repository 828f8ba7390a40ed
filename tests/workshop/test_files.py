"""Lines are read with care, and files written to where they are meant."""

import errno
import fcntl
import io
import os
import signal
from pathlib import Path

import pytest

from tests.runs import NURSERY, at_once, child
from transformer_annotated.workshop.files import (
    CorpusError,
    lock_folder,
    read_lines,
    replace_folder,
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


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r\r\n"])
def test_a_long_line_is_never_two(mark, end):
    """Allowed or refused as a whole, with whatever mark and end."""
    for length in range(7, 16):
        text = mark + length * b"a" + end + b"b\n"
        if length > 9:
            with pytest.raises(CorpusError, match="line 1: more than 9"):
                list(read_lines(io.BytesIO(text), longest=9))
        else:
            found = list(read_lines(io.BytesIO(text), longest=9))
            assert found == [length * "a", "b"]


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


def test_a_link_that_leads_to_itself_is_refused(tmp_path):
    """With its name, and it stays."""
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match=r"symbolic links.*loop"):
        write_atomically(tmp_path / "loop", "text")
    assert os.listdir(tmp_path) == ["loop"]


def test_what_fails_leaves_the_old_and_names_the_file(tmp_path):
    """A full disk tells a number, and not where."""
    (tmp_path / "file").write_text("before")
    (tmp_path / "folder").mkdir()

    def full(draft):
        draft.write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match=r"space.*file") as problem:
        write_atomically(tmp_path / "file", full)
    assert problem.value.filename == str(tmp_path / "file")
    folder = tmp_path / "folder"
    with pytest.raises(OSError, match="space"), replace_folder(folder) as draft:
        full(draft / "file")
    assert (tmp_path / "file").read_text() == "before"
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]
    assert not os.listdir(folder)


def die_writing(path):
    """Write half a file or folder, and what others leave; then be killed."""

    def die(draft):
        (draft.parent / ".tmpAbCd").write_text("a library's own draft")
        draft.write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)

    if path.name == "folder":
        with replace_folder(path) as draft:
            die(draft / "file")
    write_atomically(path, die)


@pytest.mark.parametrize("name", ["file.txt", "folder"])
def test_leftovers_of_the_dead_are_removed_by_who_succeeds(tmp_path, name):
    """But not those of the living, or of other files."""
    path = tmp_path / name
    assert at_once(die_writing, path) == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    others = {f".{name}.1.part", f".{name}x{left.suffixes[-2]}.part"}
    for other in others:  # of process 1, which lives; of another file
        (tmp_path / other).mkdir()
    if name == "folder":
        with replace_folder(path) as draft:
            (draft / "file").write_text("whole")
    else:
        write_atomically(path, "whole")
    assert set(os.listdir(tmp_path)) == {name, *others}


def test_a_folder_that_cannot_be_replaced_is_as_before(tmp_path, monkeypatch):
    """If the second of two renames fails, the first is undone."""
    folder, rename = tmp_path / "folder", Path.rename
    folder.mkdir()
    (folder / "file").write_text("before")

    def fails(path, target):
        if path.suffix == ".part":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises(OSError, match="error"), replace_folder(folder) as draft:
        (draft / "file").write_text("after")
    assert os.listdir(tmp_path) == ["folder"]
    assert (folder / "file").read_text() == "before"


def test_what_the_dead_moved_away_is_put_back(tmp_path):
    """Killed between two renames: who writes next finds the old folder."""
    folder, dead = tmp_path / "folder", 2**22 + 1  # no process has this number
    old = tmp_path / f".folder.{dead}.old"
    old.mkdir()
    (old / "file").write_text("before")
    with pytest.raises(RuntimeError), replace_folder(folder):
        raise RuntimeError
    assert os.listdir(tmp_path) == ["folder"]
    assert (folder / "file").read_text() == "before"


def hold(folder, report):
    """Lock a folder until killed."""
    with lock_folder(folder):
        report.send(os.getpid())
        signal.pause()


def test_a_locked_folder_is_refused_until_its_owner_is_dead(tmp_path):
    """The refusal names the process; a kill opens the lock."""
    ours, theirs = NURSERY.Pipe(duplex=False)
    process = child(hold, tmp_path, theirs)
    number = ours.recv()
    message = rf"{tmp_path}: in use by process {number}; "
    for _ in range(2):
        with pytest.raises(ValueError, match=message), lock_folder(tmp_path):
            pass
    process.kill()
    process.join()
    for _ in range(2):
        with lock_folder(tmp_path):
            assert (tmp_path / ".lock").read_text() == str(os.getpid())
    for thing in (process, ours, theirs):
        thing.close()


def test_children_do_not_inherit_a_lock(tmp_path):
    """Processes that prepare batches may outlive who forked them."""
    with lock_folder(tmp_path):
        reader, writer = os.pipe()
        if (forked := os.fork()) == 0:
            os.close(writer)
            os.read(reader, 1)
            os._exit(0)
    with lock_folder(tmp_path):
        os.close(writer)
    os.close(reader)
    os.waitpid(forked, 0)


def test_a_file_system_without_locks(tmp_path, monkeypatch, capsys):
    """Is warned of, and used; one that cannot be written is refused."""

    def flock(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with lock_folder(tmp_path):
        assert "no locks on this file system" in capsys.readouterr().err
    (tmp_path / "link").symlink_to(tmp_path / "link")
    with pytest.raises(OSError, match="link"), lock_folder(tmp_path / "link"):
        pass
