"""Tools of a release: what is built, and the lines that install it."""
