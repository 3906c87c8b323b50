"""Plugs: what they are, the board on which they come and go, and what is fit to be served."""
