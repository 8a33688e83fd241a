"""Selection: better answers for more inference. Nothing here changes a weight."""
