"""gofer's built-in plugins: each is found through its entry point, like anybody's."""
