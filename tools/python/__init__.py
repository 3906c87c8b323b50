"""Python files as plugs: plain functions become tools, prompts and resources.

What an author of a plug says of a function is to be had from here.
"""

from guildry.tools.python.decorators import effects, prompt, reads, resource, tool

__all__ = ["effects", "prompt", "reads", "resource", "tool"]
