"""Damaged input of every kind, and what the command line makes of it.

``make fuzz N=10000`` runs as many cases, ``make test`` a few hundred. A case is
a number and a seed: ``python -m tests.fuzz --seed S --only I`` repeats one.

A case damages a copy of one file of a run, of its data or of a recipe, or sets
a key to something odd, and calls a command. It must end with exit code 0 or 2
(or 1, if training met numbers that are not finite), say at most one line on
standard error, and in time; and what it read must be as it was.
"""

import argparse
import contextlib
import faulthandler
import functools
import hashlib
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import tomllib
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import get_args

import tomli_w
import torch

from transformer_annotated.workshop.cli import main
from transformer_annotated.workshop.recipe import Recipe

SECONDS, BYTES = 20, 6 * 2**30  # what a case may take, of one core
BASE = (
    "layers=1 d_model=16 d_ff=16 heads=2 train_size=60 valid_size=8 steps=4 "
    "batch_tokens=200 warmup=10 log_every=1 checkpoint_every=2 "
    "validate_every=2 keep=3"
).split()
PAIRS = "kind=byte-pairs vocab_size=300".split()
ODD_WORDS = [
    *("", "x", "-1", "0", "1", "2", "3", "1.5", "-0.0", "nan", "inf", "-inf"),
    *("1e400", "1e-400", "2147483648", "4294967296", "9" * 19, "9" * 30),
    *("9" * 5000, "0x" + "f" * 9999, "true", "false", "[]", "[1]", "{}"),
    *("{a = 1}", "[[]]", "'a'", '"a"', '"', "'''", "\\", "a\nb = 1", "\0"),
    *("é", "\ud800", "[" * 5000, "1979-05-27", "=", ".", "..", "/dev/null"),
    *("/dev/zero", "DIR", "FIFO", "LOOP", "none.toml", "x" * 5000, "en", "de"),
]
ODD_VALUES = [
    *(0, 1, -1, 2, 3, 1.5, -0.5, 2**31, 2**32, 2**63 - 1, -(2**63), 2**63),
    *(10**30, 1e300, "", "x", "1", "é" * 9, "\0", "a" * 5000, "/dev/zero"),
    *(True, False, [], [1], ["a", "b"], [[]], {}, {"a": 1}, {"": []}),
    *(float("nan"), float("inf"), 999999999999),
]
SLOW = {  # what takes minutes by right: compilers, downloads, boards
    ("compile", "true"),
    ("tensorboard", "true"),
    ("workers", "2"),
    ("workers", "3"),
}


STDERR = os.fdopen(os.dup(2), "w")  # for a case that hears no signal


class TooLongError(BaseException):
    """A case does not come to an end."""


def call(*arguments):
    """Exit code, output and errors of a command, in this process."""
    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["transformer-annotated", *map(str, arguments)]
    code = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as end:
        code = end.code or 0
    finally:
        sys.argv = before
    return code, out.getvalue(), err.getvalue()


def options(changes):
    """Options that change a recipe."""
    return [word for change in changes for word in ("--set", change)]


@functools.cache
def templates(folder):
    """Two small runs, with everything that can be damaged."""
    for name, more in (("words", ["kind=words"]), ("pairs", PAIRS)):
        out = folder / name
        code, _, err = call(
            *("train", "copy", "--out", out, *options(BASE + more))
        )
        assert (code, err) == (0, "")
        assert call("average", out, "--last", 2)[0] == 0
        tables = tomllib.loads((out / "config.toml").read_text())
        (out / "recipe.toml").write_text(tomli_w.dumps(tables))
        for file, last in (("lines", "h"), ("others", "i")):
            text = "".join(f"{a} b {last}\n" for a in "acdefgjklmno")
            (out / file).write_text(f"{text}\n{last}\n")
        files = ("--source", out / "lines", "--reference", out / "others")
        assert call("evaluate", "--model", out, *files)[0] == 0
    return folder


# --- damage


def damage_bytes(draw, content):
    """Flip, cut, repeat, insert: what disks, networks and editors do."""
    content = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 8))):
        a, b = sorted(draw.randrange(len(content) + 1) for _ in range(2))
        if draw.random() < 0.5:  # headers are where the trouble is
            a, b = a % 200, min(a % 200 + draw.randrange(1, 9), len(content))
        kind = draw.randrange(6)
        if kind == 0 and content:
            content[a % len(content)] ^= 1 << draw.randrange(8)
        elif kind == 1:
            content[a:b] = b""
        elif kind == 2:
            content[a:a] = content[a:b][:10_000]
        elif kind == 3:
            content[a:a] = draw.randbytes(draw.randrange(1, 9))
        elif kind == 4:
            del content[a:]
        else:
            word = draw.choice(ODD_WORDS).encode("utf-8", "surrogatepass")
            content[a : a + len(word)] = word
    return bytes(content)


def damage_tree(draw, tree):
    """Change, remove or add one value anywhere in tables and lists."""
    places = []

    def walk(node):
        items = node.items() if isinstance(node, dict) else enumerate(node)
        for key, value in list(items)[:50]:
            places.append((node, key))
            if isinstance(value, dict | list):
                walk(value)

    walk(tree)
    node, key = draw.choice(places)
    kind = draw.randrange(4)
    if kind == 0:
        del node[key]
    elif kind == 1 and isinstance(node, dict):
        node[draw.choice(("new", "", "step", str(key)[:-1]))] = draw.choice(
            ODD_VALUES
        )
    else:
        node[key] = draw.choice(ODD_VALUES)
    return tree


def damage_json(draw, content):
    """A tree in one line of JSON, or in one of many lines."""
    lines = content.decode().splitlines()
    if len(lines) > 1 and lines[0].endswith("}"):  # metrics
        i = draw.randrange(len(lines))
        lines[i] = json.dumps(damage_tree(draw, json.loads(lines[i])))
        return ("\n".join(lines) + "\n").encode()
    return json.dumps(damage_tree(draw, json.loads(content))).encode()


def damage_toml(draw, content):
    """A tree that is written as TOML, if it can be."""
    tree = damage_tree(draw, tomllib.loads(content.decode()))
    with contextlib.suppress(ValueError, TypeError):
        return tomli_w.dumps(tree).encode("utf-8", "surrogatepass")
    return content + b"\nx = "


def damage_safetensors(draw, content):
    """The header, which is JSON behind its length."""
    size = int.from_bytes(content[:8], "little")
    header = damage_json(draw, content[8 : 8 + size])
    return len(header).to_bytes(8, "little") + header + content[8 + size :]


def damage_state(draw, content):
    """A tree that torch has pickled; only plain values are in it."""
    tree = torch.load(io.BytesIO(content), weights_only=True)
    file = io.BytesIO()
    torch.save(damage_tree(draw, tree), file)
    return file.getvalue()


BY_FORM = {
    ".toml": damage_toml,
    ".json": damage_json,
    ".jsonl": damage_json,
    ".safetensors": damage_safetensors,
    ".pt": damage_state,
}


def replace_by_no_file(draw, path):
    """A folder, a pipe, a device, a link to itself, or nothing; which."""
    path.unlink()
    kind = draw.choice(("folder", "pipe", "device", "loop", "nothing"))
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to(draw.choice(("/dev/zero", "/dev/random")))
    elif kind == "loop":
        path.symlink_to(path)
    return kind


def damage(draw, path):
    """Damage a file; returns in which way."""
    if draw.random() < 0.12:
        return replace_by_no_file(draw, path)
    content, form = path.read_bytes(), BY_FORM.get(path.suffix)
    if form and draw.random() < 0.5:
        path.write_bytes(form(draw, content))
        return "a value"
    path.write_bytes(damage_bytes(draw, content))
    return "bytes"


# --- cases

QUIET = "--no-report"  # a second each; they are written by REPORT alone
RESUME = ("train", "--out", "RUN", "--resume", *options(["steps=6"]), QUIET)
REPORT = ("report", "RUN")
TRANSLATE = ("translate", "--model", "RUN", "a b c", "", "d")
DATA = (
    *("train", "RUN/recipe.toml", "--data", "RUN/data", "--out", "RUN/new"),
    *options(["steps=1", "prepared="]),
    QUIET,
)
EVALUATE = (
    *("evaluate", "--model", "RUN", "--source", "RUN/lines"),
    *("--reference", "RUN/others", QUIET),
)
LINES = ("translate", "--model", "RUN", "--source", "RUN/lines")
OWN = (
    *("train", "--source", "RUN/lines", "--target", "RUN/others"),
    *("--out", "RUN/new", *options([*BASE[:4], "steps=1", "vocab_size=300"])),
    QUIET,
)
ARRAYS = [
    f"data/{part}/{name}"
    for part in ("train", "valid")
    for name in (
        "about.json source.npy source_starts.npy target.npy target_starts.npy"
    ).split()
]
TARGETS = [  # a file, and the commands that must read it
    ("config.toml", (RESUME, TRANSLATE, REPORT)),
    ("tokenizer.json", (TRANSLATE,)),
    ("model.safetensors", (TRANSLATE,)),
    ("checkpoints/step-4/model.safetensors", (RESUME,)),
    ("checkpoints/step-4/training.pt", (RESUME,)),
    ("metrics.jsonl", (RESUME, REPORT)),
    ("evaluations.jsonl", (REPORT,)),
    ("data/prepared.toml", (DATA, RESUME, REPORT)),
    ("data/tokenizer.json", (DATA, REPORT)),
    ("ARRAY", (DATA,)),
    ("ARRAY", (DATA, REPORT)),
    ("recipe.toml", (DATA,)),
    ("lines", (LINES, EVALUATE, OWN)),
    ("others", (EVALUATE, OWN)),
]
GONE_IS_FINE = (
    *("metrics.jsonl", "model.safetensors", "data/prepared.toml"),
    "evaluations.jsonl",
)
KEYS = [
    key
    for part in Recipe.__dataclass_fields__.values()
    for kind in get_args(part.type) or (part.type,)
    for key in kind.__dataclass_fields__
]


def file_case(draw, run):
    """Damage a file; the command, and whether it must be refused."""
    name, commands = draw.choice(TARGETS)
    if name == "ARRAY":
        name = draw.choice(ARRAYS)
    kind = damage(draw, run / name)
    must = kind in ("folder", "pipe", "device", "loop") or (
        kind == "nothing" and name not in GONE_IS_FINE
    )
    return f"{name}: {kind}", draw.choice(commands), must


def change_case(draw, run):
    """Set one or two keys to something odd."""
    (run / "DIR").mkdir()
    os.mkfifo(run / "FIFO")
    (run / "LOOP").symlink_to(run / "LOOP")
    changes = []
    for _ in range(draw.choice((1, 1, 2))):
        key, word = draw.choice(KEYS), draw.choice(ODD_WORDS)
        if draw.random() < 0.4:  # of the right type, more or less
            word = draw.choice(ODD_WORDS[2:20])
        if (key, word) in SLOW:
            continue
        if draw.random() < 0.1 or key == "seed":
            tables = ("corpus", "tokenizer", "model", "training", "", "x")
            key = f"{draw.choice(tables)}.{key}"
        if word in ("DIR", "FIFO", "LOOP"):
            word = f"{run}/{word}"
        changes.append(f"{key}={word}".replace("\0", "\\0"))
    start = ("train", "copy") if draw.random() < 0.7 else ("prepare", "grammar")
    base = options([*BASE, "steps=1", *changes])
    base += [QUIET] if start[0] == "train" else []
    return f"--set {changes!r:.100}", (*start, "--out", "RUN/new", *base), False


def digests(run):
    """What every file of a run holds, but for locks."""
    found = {}
    for path in sorted(run.rglob("*")):
        if path.is_file() and not path.is_symlink() and path.name != ".lock":
            found[str(path.relative_to(run))] = hashlib.blake2b(
                path.read_bytes()
            ).digest()
    return found


def may_change(name, command, code):
    """Whether a command that ended so may write to a file that was there."""
    if command is REPORT:
        return code == 0 and name == "report.html"
    return command is RESUME and code != 2 and not name.startswith("data/")


def judge(command, code, err, must, before, after):
    """What is wrong with how a case ended, if anything."""
    if "Traceback" in err or code not in (0, 1, 2):
        return f"exit code {code}: {err[-300:]}"
    if code == 1 and "not finite" not in err and "loss is" not in err:
        return f"exit code 1: {err[-300:]}"
    usage = err.startswith("Usage: ")  # click's own, with a line about help
    if err.count("\n") > (4 if usage else 1):
        return f"{err.count(chr(10))} lines: {err[:300]}"
    if (code == 2) != err.startswith(("error: ", "Usage: ")) and code != 1:
        return f"exit code {code}, but says {err[:300]!r}"
    if len(err) > 2000:
        return f"a line of {len(err):,} letters: {err[:200]}"
    if must and code == 0:
        return "not refused"
    for name, digest in before.items():
        if after.get(name) != digest and not may_change(name, command, code):
            return f"exit code {code}, and {name} has changed: {err[:200]}"
    return ""


@contextlib.contextmanager
def bounded():
    """Inside this, time and memory have an end."""

    def late(number, frame):
        raise TooLongError

    used = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = used * resource.getpagesize() + BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    handler = signal.signal(signal.SIGALRM, late)
    signal.alarm(6 * SECONDS)  # the machine may be busy
    faulthandler.dump_traceback_later(9 * SECONDS, exit=True, file=STDERR)
    try:
        yield
    finally:
        signal.alarm(0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def run_case(folder, seed, number):
    """Run one case; what it was, how it ended, and what is wrong with it."""
    draw = random.Random(f"{seed} {number}")
    run = folder / "case"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(folder / draw.choice(("words", "pairs")), run)
    make = file_case if draw.random() < 0.75 else change_case
    what, command, must = make(draw, run)
    here = run / "some" / "where"  # so that "x" and ".." are in the copy
    here.mkdir(parents=True)
    words = [word.replace("RUN", str(run)) for word in command]
    before, code, began = digests(run), None, time.process_time()
    try:
        with bounded(), contextlib.chdir(here), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code, _, err = call(*words)
    except TooLongError:
        wrong = f"no end after {6 * SECONDS} s"
    except BaseException as problem:
        if isinstance(problem, KeyboardInterrupt):
            raise
        wrong = "".join(traceback.format_exception(problem)[-3:])
    else:
        wrong = judge(command, code, err, must, before, digests(run))
    if (took := time.process_time() - began) > SECONDS:
        wrong = wrong or f"{took:.0f} s of computing"
    return f"{command[0]}, {what}", code, wrong


def fuzz(folder, seed, numbers, report=print):
    """Run cases in a folder; those that went wrong, in a line each."""
    templates(folder)
    failures, codes, slowest = [], Counter(), (0.0, "")
    for number in numbers:
        began = time.monotonic()
        what, code, wrong = run_case(folder, seed, number)
        codes[code] += 1
        slowest = max(slowest, (time.monotonic() - began, f"{number} {what}"))
        if sum(codes.values()) % 500 == 0:
            report(f"{sum(codes.values()):,} cases, {len(failures)} failures")
        if wrong:
            failures.append(f"--seed {seed} --only {number}: {what}: {wrong}")
            report(failures[-1])
    report(
        f"seed {seed}: {sum(codes.values()):,} cases, exit codes "
        f"{dict(codes)}, {len(failures)} failures; the slowest took "
        f"{slowest[0]:.1f} s: {slowest[1]}"
    )
    return failures


def command_line():
    """Run many cases, or repeat one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=1000, help="how many")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**6)
    parser.add_argument("--only", type=int, help="the number of one case")
    given = parser.parse_args()
    torch.set_num_threads(1)
    only = given.only is not None
    numbers = [given.only] if only else range(given.n)
    with tempfile.TemporaryDirectory() as folder:
        report = functools.partial(print, flush=True)
        sys.exit(bool(fuzz(Path(folder), given.seed, numbers, report)))


if __name__ == "__main__":
    command_line()
