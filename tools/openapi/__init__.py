"""OpenAPI documents as plugs: each operation of an HTTP API is a tool."""
