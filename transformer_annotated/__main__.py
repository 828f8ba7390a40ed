"""What ``python -m transformer_annotated`` runs."""

from transformer_annotated.workshop.cli import main

if __name__ == "__main__":
    main()
