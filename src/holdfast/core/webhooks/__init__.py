"""Webhooks as values, and the addresses they may reach."""
