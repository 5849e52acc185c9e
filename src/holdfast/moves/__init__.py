"""What a report, a request or a completion does to a job's rows: pure, shared by every store."""
