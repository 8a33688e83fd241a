"""Claims and what supports them: measured over many seeds, with the recipe, the machine and the raw outcomes beside the numbers."""
