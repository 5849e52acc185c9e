"""The common parts of policy scripts: where ranks meet, how a run ends, which hosts are fit."""
