"""What can be called: tools, where they come from, who may call them, and the one gate."""
