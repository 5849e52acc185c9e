"""The state that the leading replica keeps between the turns of its loops. All of it can be
lost."""
