"""What plugs offer under a URI. Knows no caller."""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from guildry.tools.offers import Resource, Template
    from guildry.tools.registry import Registry

__all__ = ["OWN_SCHEMES", "offered_at"]

OWN_SCHEMES: Final = ("ref://", "run://", "tool://", "team://", "plug://")
"""What Guildry's own resources begin with. No plug's template is asked for one of them."""


def offered_at(registry: "Registry", uri: str) -> "Resource | Template | None":
    """Return what a plug offers at `uri`: a resource of that very URI, else a template."""
    found = registry.resources.get(uri)
    if found is not None or uri.startswith(OWN_SCHEMES):
        return found
    return next((each for each in registry.templates if each.matches(uri)), None)
