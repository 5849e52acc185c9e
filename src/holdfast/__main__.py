"""`python -m holdfast` is `holdfast`. A Ctrl-C while it loads prints no traceback."""

import sys


def main() -> None:
    """Run the program."""
    try:
        from holdfast.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
