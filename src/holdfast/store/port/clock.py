"""The time of a call (STORE-5)."""

from datetime import datetime

Now = datetime | None
"""The time of a call: None for the store's own clock; a time in tests and simulations."""
