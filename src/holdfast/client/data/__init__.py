"""Files that arrive from jobs, and files that are sent to them."""
