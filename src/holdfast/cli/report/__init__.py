"""`report`: where the hours went, on the terminal, as CSV and as a page."""
