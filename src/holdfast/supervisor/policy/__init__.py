"""What policy scripts have in common: where ranks meet, how a run ends, which hosts are fit."""
