"""Reports for people of how hours were spent: their route, and the reads behind it."""
