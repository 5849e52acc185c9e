"""Carry out the controller's orders and the guardian's answers on this host."""
