"""Guildry in the configuration of MCP clients: what each keeps, put in and taken out as text."""
