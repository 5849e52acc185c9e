"""The same work without Holdfast: what the figures are measured against."""
