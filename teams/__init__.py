"""Who works: models, agents, budgets, plans and the teams made of them."""
