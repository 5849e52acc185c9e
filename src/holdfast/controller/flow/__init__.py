"""What routes and loops share about calls of functions and workflows."""
