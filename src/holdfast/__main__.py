"""`python -m holdfast` is `holdfast`. A Ctrl-C while it loads prints no traceback."""

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
