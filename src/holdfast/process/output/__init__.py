"""The output of programs on its way into their log files: through pipes, by a process of its own."""
