"""The executable edition of *Attention Is All You Need*."""

from transformer_annotated.model import Transformer, TransformerConfig
from transformer_annotated.workshop.translator import Translator

__all__ = ["Transformer", "TransformerConfig", "Translator"]
__version__ = "0.1.0"
