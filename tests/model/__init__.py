"""A model of the store, in memory, for the chaos of the protocol."""
