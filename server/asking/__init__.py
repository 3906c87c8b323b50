"""Calls that ask their client: questions on the wire, the calls that wait, and sealed state."""
