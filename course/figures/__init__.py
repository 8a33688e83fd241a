"""Pure functions from data to matplotlib figures, and thin widgets over them. Nothing here is imported until a figure is drawn."""

from course.figures.words import say

__all__ = ["say"]
