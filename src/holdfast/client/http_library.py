"""httpx, without the command line that it imports with itself."""

from __future__ import annotations

import sys

if "httpx" not in sys.modules and "httpx._main" not in sys.modules:
    # httpx tries to import its own command line, and with it rich and pygments: 40 ms, half of its
    # import. It works without them (they are its extra); an import of a module that is None fails.
    sys.modules["httpx._main"] = None  # type: ignore[assignment]  # the documented way to make an import fail
    try:
        import httpx
    finally:
        del sys.modules["httpx._main"]
else:
    import httpx

__all__ = ["httpx"]
