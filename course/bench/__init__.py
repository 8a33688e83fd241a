"""Speed as ratios: ours and a named alternative take turns in one process, so that a busy machine slows both."""
