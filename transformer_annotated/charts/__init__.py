"""Charts of the book: one module a chapter, and what they share."""
