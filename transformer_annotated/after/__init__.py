"""After the paper: what the field made of it."""
