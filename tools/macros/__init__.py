"""Macros: sequences of calls that come again and again, found in journals and made into tools."""
