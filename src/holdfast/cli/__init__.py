"""The command line. `main` holds the table of commands; each is imported only when it is asked
for."""
