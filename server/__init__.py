"""Who is served: the MCP surface, its transports, and the command line."""
