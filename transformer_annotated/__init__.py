"""The executable edition of *Attention Is All You Need*."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformer_annotated.model import Transformer, TransformerConfig
    from transformer_annotated.workshop.translator import Translator

__all__ = ["Transformer", "TransformerConfig", "Translator"]
__version__ = "0.1.0"

_HOMES = {
    "Transformer": "model",
    "TransformerConfig": "model",
    "Translator": "workshop.translator",
}


def __getattr__(name: str) -> object:
    """Import a name, and PyTorch with it, when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """What there is, for those who press the tab key."""
    return sorted({*globals(), *__all__})
