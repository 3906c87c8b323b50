"""What is kept: object references, run journals and the effect ledger, in one SQLite file."""
