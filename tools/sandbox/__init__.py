"""Processes that cannot do more than they were granted, and that leave nothing behind."""
