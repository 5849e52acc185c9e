"""`holdfast up` and its parts."""
