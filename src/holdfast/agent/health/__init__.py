"""Health checks of this host: measured in a process of their own, judged by the controller."""
