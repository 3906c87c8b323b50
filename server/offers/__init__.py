"""What clients are offered besides tools: prompts, resources, and what is followed of them."""
