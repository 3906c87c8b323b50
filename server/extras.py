"""Packages that need not be there. Imports none of them."""

import importlib.util

__all__ = ["is_installed"]


def is_installed(name: str) -> bool:
    """Tell whether a package can be imported."""
    try:
        return importlib.util.find_spec(name) is not None
    except ValueError:  # a stand-in, which says that it is not to be imported
        return False
