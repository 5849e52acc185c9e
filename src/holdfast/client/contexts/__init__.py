"""Named servers: the file of a user's contexts, which `holdfast login` writes."""
