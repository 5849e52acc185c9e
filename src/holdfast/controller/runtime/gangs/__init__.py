"""The watch over gangs as wholes: slow ranks, and ranks that compute wrongly."""
