"""`python -m holdfast` is `holdfast`. Loading the command line takes a moment, in which a Ctrl-C is
as quiet as one after it."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the `holdfast` program."""
    try:
        from holdfast.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
