"""Discovery: what is found of what is installed, and what becomes of what is broken."""
