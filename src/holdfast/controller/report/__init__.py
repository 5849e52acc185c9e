"""What the hours were spent on, for people: the route of reports, and what it reads."""
