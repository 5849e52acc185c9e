"""Inside a supervised job: ranks, and the messages of their processes."""
