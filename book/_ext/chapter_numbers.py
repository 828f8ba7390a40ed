"""Number figures and equations by chapter: Fig. 3.2 is in ``03_attention``.

The headings carry the numbers of the paper, so Sphinx numbers no sections.
Equations (1) to (3) are the paper's own, and tagged as such.
"""

import re


def restore(app, env):
    """Show Sphinx the numbers that it gave, so that it sees what changed."""
    env.toc_fignumbers = getattr(env, "plain_fignumbers", env.toc_fignumbers)
    return []


def by_chapter(app, env):
    """Put the number of the chapter before that of a figure or equation."""
    env.plain_fignumbers, env.toc_fignumbers = env.toc_fignumbers, {}
    for page, kinds in env.plain_fignumbers.items():
        chapter = re.match(r"notebooks/(\d+)_", page)
        before = (int(chapter[1]),) if chapter else ()
        env.toc_fignumbers[page] = {
            kind: {id_: (*before, i) for i, id_ in enumerate(found, 1)}
            for kind, found in kinds.items()
        }
    return []


def setup(app):
    """Register with Sphinx."""
    app.connect("env-get-updated", restore, priority=100)
    app.connect("env-get-updated", by_chapter, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
