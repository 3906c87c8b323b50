"""MCP servers as plugs. Only these modules know the MCP client side."""
