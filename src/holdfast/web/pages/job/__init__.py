"""The page of one job and its parts: output, search, ranks, timeline."""
