"""The libraries of `holdfast.integrations`, really installed, in scripts of their users."""
