"""Published systems, scaled down to minutes: each put together from the package's own parts."""
