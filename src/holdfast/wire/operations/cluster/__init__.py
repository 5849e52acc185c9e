"""The operations on what operators set and read: queues, settings, tokens, notices, reports, the server."""
