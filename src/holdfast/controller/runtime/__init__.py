"""The pieces that one controller process is made of."""
