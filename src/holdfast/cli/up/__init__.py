"""Run `holdfast up` and its parts."""
