"""`python -m holdfast` is `holdfast`. A Ctrl-C while it loads prints no traceback."""

import gc
import sys


def main() -> None:
    """Entry point of the `holdfast` program."""
    gc.disable()  # what an import makes lives to the end: a collection would find nothing
    try:
        from holdfast.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        gc.enable()
    run()


if __name__ == "__main__":
    main()
