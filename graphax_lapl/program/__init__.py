"""Programs: explicit instructions, their builder and their cost."""
