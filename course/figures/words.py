"""Prose that takes its numbers from the run: a notebook computes what it says."""


def say(text: str) -> None:
    """Show Markdown below the cell (plain text outside a notebook)."""
    try:
        from IPython import get_ipython
        from IPython.display import Markdown, display
    except ImportError:
        print(text)
        return
    display(Markdown(text)) if get_ipython() is not None else print(text)
