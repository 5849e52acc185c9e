"""Commands about the code of jobs, and the sending of a folder."""
