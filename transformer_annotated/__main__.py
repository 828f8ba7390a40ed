"""What ``python -m transformer_annotated`` runs."""

import signal

# Until the rest is loaded, Ctrl-C ends the process without a traceback.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from transformer_annotated.workshop.cli import main

if __name__ == "__main__":
    main()
