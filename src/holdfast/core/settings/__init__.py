"""Every setting: the table, the resolution of a value, and the settings of a task's watchdogs."""
