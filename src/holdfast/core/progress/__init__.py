"""How fast a job's steps go and how long the rest will take, from its beats."""
