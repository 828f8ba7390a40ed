"""The executable edition of *Attention Is All You Need*."""

from transformer_annotated.model import Transformer, TransformerConfig

__all__ = ["Transformer", "TransformerConfig"]
__version__ = "0.1.0"
