"""The methods of MCP, one module for each area of the protocol. Each registers its handlers."""
