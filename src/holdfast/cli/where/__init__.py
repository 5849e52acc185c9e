"""Commands that say and change which server is meant: login, logout, status, contexts."""
