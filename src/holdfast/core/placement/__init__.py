"""Admission: which jobs start, on which hosts, and which jobs make room for them."""
