"""Run the notebooks several at a time, before Sphinx reads them one by one.

What ran well goes into the execution cache, where Sphinx finds it. What did
not is left alone: Sphinx will run it again, and say what is wrong.
"""

import os
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import nbformat
from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn
from jupyter_cache.executors.utils import single_nb_execution
from nbdev_directives import PACKAGE, with_directives
from sphinx.util import logging

log = logging.getLogger(__name__)


def run_ahead(app, env, docnames):
    """Execute the notebooks among these pages that are not in the cache."""
    package = Path(app.srcdir) / PACKAGE
    cache = get_cache(env.mystnb_config.execution_cache_path)
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
        for job in as_completed(jobs):
            path = jobs[job]
            if job.exception() or (result := job.result()).err:
                continue
            log.info("ran %s in %.0f s", path.name, result.time)
            data = {"execution_seconds": result.time}
            bundle = CacheBundleIn(result.nb, str(path), data=data)
            cache.cache_notebook_bundle(bundle, check_validity=False)


def setup(app):
    """Register with Sphinx."""
    app.connect("env-before-read-docs", run_ahead)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
