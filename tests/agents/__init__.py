"""Real agents, installed from their registries, at work for a model that plays scripts."""
