"""When queued jobs should start, as the API says it."""
