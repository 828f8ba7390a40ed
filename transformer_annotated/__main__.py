"""What ``python -m transformer_annotated`` runs."""

from transformer_annotated.cli import main

if __name__ == "__main__":
    main()
