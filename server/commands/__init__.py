"""The command line: one module a group of commands. Nothing is imported here."""

__all__: list[str] = []
