"""Jobs that come in series, in memory."""
