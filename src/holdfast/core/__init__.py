"""Every decision that Holdfast makes. Pure: no I/O, no clock, no randomness, no logging.

Time, chance and ids come in as arguments. A function here takes values and returns values, so that
every decision Holdfast makes can be tested by property and replayed from its record.
"""
