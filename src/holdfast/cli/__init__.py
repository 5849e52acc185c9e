"""The command line. `main` holds the table of commands; each is imported when it is first used."""
