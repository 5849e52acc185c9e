"""The meaning of an end: from facts to a cause, from a cause to a decision."""
