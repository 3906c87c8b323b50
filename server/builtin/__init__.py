"""The built-in tools: each module makes some of them. They are passed by dispatch like any other.

They belong to the plug `guildry`; those with the scope `admin` are neither shown to nor run for
callers without it, which agents never have.
"""
