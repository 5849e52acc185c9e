"""Code of jobs on a host: fetched once, kept, and laid into work folders."""
