"""Show no links to the project's address until it has one.

``make address`` sets it. Before, the buttons that lead there would lead
nowhere: those of the repository, of Binder and of Colab.
"""

PLACEHOLDER = "github.com/example/"
OPTIONS = (
    "launch_buttons",
    "use_repository_button",
    "use_issues_button",
    "use_edit_page_button",
)


def hide_buttons(app, config):
    """Leave out what needs an address."""
    options = config.html_theme_options
    if PLACEHOLDER in options.get("repository_url", ""):
        for name in OPTIONS:
            options.pop(name, None)


def setup(app):
    """Register with Sphinx."""
    app.connect("config-inited", hide_buttons)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
