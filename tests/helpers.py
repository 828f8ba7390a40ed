"""What several files of tests need: sentence pairs, in files and as ids."""

import gzip
import lzma
from dataclasses import dataclass

import numpy as np

ENGLISH = ["A dog runs.", "Two cats sleep.", "", "Where is the ball?"]
GERMAN = ["Ein Hund rennt.", "Zwei Katzen schlafen.", "", "Wo ist der Ball?"]
PAIRS = list(zip(ENGLISH, GERMAN, strict=True))


def gz(content):
    """Pack, the same way each time."""
    return gzip.compress(content, mtime=0)


def xz(content):
    """Pack, with little effort."""
    return lzma.compress(content, preset=0)


def write(path, lines, packed=None):
    """Write lines, plain or packed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = "".join(f"{line}\n" for line in lines).encode()
    pack = {None: bytes, "gz": gz, "xz": xz}[packed]
    path.write_bytes(pack(content))
    return path


@dataclass
class ListPairs:
    """Pairs in memory; ids are from 4 on."""

    sources: list
    targets: list

    @property
    def source_lengths(self):
        """Tokens of each source."""
        return np.array([len(ids) for ids in self.sources])

    @property
    def target_lengths(self):
        """Tokens of each target."""
        return np.array([len(ids) for ids in self.targets])

    def source(self, i):
        """Ids of a source."""
        return self.sources[i]

    def target(self, i):
        """Ids of a target."""
        return self.targets[i]
