"""Values that come later: futures, waits for many of them, and messages on their way."""
