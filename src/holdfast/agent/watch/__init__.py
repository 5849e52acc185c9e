"""The watchdogs at work on one host: samples, verdicts, evidence."""
