"""Mend what the libraries' HTML tells a screen reader.

A bibliography calls itself a list, but its entries are no list items.
"""

LIST = '<div role="list" class="citation-list">'


def mend(app, pagename, templatename, context, doctree):
    """Correct the body of a page."""
    if LIST in context.get("body", ""):
        new = LIST.replace(' role="list"', "")
        context["body"] = context["body"].replace(LIST, new)


def setup(app):
    """Register with Sphinx."""
    app.connect("html-page-context", mend)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
