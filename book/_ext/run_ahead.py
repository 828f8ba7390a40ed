"""Run the notebooks several at a time, before Sphinx reads them one by one.

What ran well goes into the execution cache, where Sphinx finds it. What did
not is left alone: Sphinx will run it again, and say what is wrong.
"""

import os
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import nbformat
from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn
from jupyter_cache.executors.utils import single_nb_execution
from jupyter_client.manager import KernelManager
from nbdev_directives import PACKAGE, with_directives


def clock(seconds):
    """Minutes and seconds, as on a clock."""
    return f"{seconds // 60:.0f}:{seconds % 60:02.0f}"


def run_ahead(app, env, docnames):
    """Execute the notebooks among these pages that are not in the cache."""
    package = Path(app.srcdir) / PACKAGE
    cache = get_cache(env.mystnb_config.execution_cache_path)
    began = time.monotonic()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = {}
        for path in map(Path, map(env.doc2path, docnames)):
            if path.suffix != ".ipynb":
                continue
            text = with_directives(path.read_text("utf-8"), package)
            notebook = nbformat.reads(text, as_version=4)
            try:
                cache.match_cache_notebook(notebook)
            except KeyError:
                timeout = env.mystnb_config.execution_timeout
                job = pool.submit(
                    single_nb_execution, notebook, path.parent, timeout, False
                )
                jobs[job] = path
        for number, job in enumerate(as_completed(jobs), 1):
            path, now = jobs[job], clock(time.monotonic() - began)
            line = f"{now:>6}  chapter {number} of {len(jobs)}: {path.stem}"
            if job.exception() or (result := job.result()).err:
                print(f"{line} failed; Sphinx will say why", flush=True)
                continue
            print(f"{line}, {clock(result.time)} min", flush=True)
            data = {"execution_seconds": result.time}
            bundle = CacheBundleIn(result.nb, str(path), data=data)
            cache.cache_notebook_bundle(bundle, check_validity=False)


def say_that_pages_follow(app, env):
    """Say what the rest of the time is for."""
    print("        writing the pages", flush=True)


def setup(app):
    """Register with Sphinx."""
    # Kernels talk over encrypted sockets; else each prints a warning.
    KernelManager.transport_encryption.default_value = "auto"
    app.connect("env-updated", say_that_pages_follow)
    app.connect("env-before-read-docs", run_ahead)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
