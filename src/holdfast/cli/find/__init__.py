"""How words on the command line name jobs and arrays."""
