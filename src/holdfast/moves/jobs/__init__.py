"""What requests, reports and completions do to jobs and their tasks. Pure."""
