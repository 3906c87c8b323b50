"""Skill folders as plugs."""
