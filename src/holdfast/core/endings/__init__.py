"""What an end means: from facts to a cause, from a cause to a decision."""
