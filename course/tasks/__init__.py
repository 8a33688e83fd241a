"""Tasks: laws that draw prompts and responses with a known gold utility, the records feedback is kept in, and splits by group."""
