"""What sends webhooks, and notices to people: the latter a process of its own, which holds the library."""
