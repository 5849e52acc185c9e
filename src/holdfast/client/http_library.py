"""httpx, without the command line that it imports with itself."""

from __future__ import annotations

import sys

if "httpx" not in sys.modules and "httpx._main" not in sys.modules:
    # httpx imports its own command line where it can, and with it rich and pygments: 40 ms, half of
    # what httpx takes. It copes without (they are an extra of it), and a module that is None is one
    # that is not there.
    sys.modules["httpx._main"] = None  # type: ignore[assignment]  # the documented way to make an import fail
    try:
        import httpx
    finally:
        del sys.modules["httpx._main"]
else:
    import httpx

__all__ = ["httpx"]
