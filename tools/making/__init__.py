"""Tools that models make: what may be proposed, how it is tried, and where it is kept."""
