"""The dashboard's pages: each module reads what its page shows, and `templates/` draws it."""
