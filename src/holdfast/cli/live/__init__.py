"""What redraws itself: the screen, a line of progress, a command shown again and again."""
