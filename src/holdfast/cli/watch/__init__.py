"""Commands that wait and watch: `wait` and `top`, and how a terminal is drawn anew in place."""
