"""Commands about the files of jobs."""
