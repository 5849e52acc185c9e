"""The time of a call (STORE-5), and its user.

BY-1  An event that a user's call wrote names the user, in `data.by`; one that a host or the
      controller's own loops wrote names none.
"""

from contextvars import ContextVar
from datetime import datetime

Now = datetime | None
"""The time of a call: None for the store's own clock; a time in tests and simulations."""
ACTS_FOR: ContextVar[str] = ContextVar("acts_for", default="")
"""The user of the call that is being answered; empty where it has none."""
