"""Watch the tasks of one host: read samples, decide verdicts, gather evidence."""
