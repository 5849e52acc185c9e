"""The documents as a site (`make docs`): its pages, its look, and what coding agents read."""
