"""The list of all settings, how the value in force of each is found, and the settings of a task's
watchdogs."""
