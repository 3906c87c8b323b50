"""The HTTP endpoint: who may come in, whose requests these are, and how they are answered."""
