"""Export the notebooks to the package: `nbdev-export`, and one thing more.

A cell may go to another module than the rest of its notebook. nbdev appends
such cells to modules that some notebook has as its own (``default_exp``); here
the first cell that names a module begins it, and may describe it::

    #| export workshop.journal
    #| docstring: The metrics of a run, and its progress bar.
"""

from nbdev.config import get_config
from nbdev.doclinks import _build_modidx, nbglob
from nbdev.export import nb_export
from nbdev.maker import ModuleMaker, add_init

BEGUN = set()


class Modules(ModuleMaker):
    """Begins a module when it is first named, and then adds to it."""

    def __init__(self, dest, name, nb_path, is_new=True, **options):
        is_new = name not in BEGUN
        BEGUN.add(name)
        super().__init__(dest, name, nb_path, is_new=is_new, **options)

    def make(self, cells, all_cells=None, lib_path=None):
        """Write the cells, and before a new module's first its docstring."""
        super().make(cells, all_cells, lib_path)
        lines = [cell.directives_.get("docstring") for cell in cells]
        for line in filter(None, lines):
            code = self.fname.read_text(encoding="utf-8")
            self.fname.write_text(f'"""{line}"""\n\n{code}', encoding="utf-8")


def main():
    """Export all notebooks, and rebuild nbdev's index of the package."""
    for notebook in nbglob(as_path=True).sorted("name"):
        nb_export(notebook, mod_maker=Modules)
    add_init(get_config().lib_path)
    _build_modidx()


if __name__ == "__main__":
    main()
