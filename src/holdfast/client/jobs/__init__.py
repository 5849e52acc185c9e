"""Jobs as the client's methods need them: their fields, the words that name them, their ends."""
