"""When a queued job is expected to start, and what would let it start now."""
