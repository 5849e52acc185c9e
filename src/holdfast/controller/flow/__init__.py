"""What routes and loops share about workflows and calls."""
