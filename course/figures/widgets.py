"""Sliders over pure figure functions. The widget adds nothing: every picture can be had by calling the function."""

from typing import Any, Callable


def sliders(figure_of: Callable[..., Any], **ranges: tuple) -> Any:
    """A slider for each argument of figure_of, given as name=(low, high, step, start); integers stay integers."""
    import ipywidgets as widgets

    controls = {name: _slider(name, *values) for name, values in ranges.items()}
    picture = widgets.Image(format="png")

    def redraw(_: Any = None) -> None:
        picture.value = figure_of(**{name: control.value for name, control in controls.items()})._repr_png_()

    for control in controls.values():
        control.observe(redraw, names="value")
    redraw()
    return widgets.VBox([*controls.values(), picture])


def _slider(name: str, low: float | int, high: float | int, step: float | int, start: float | int) -> Any:
    import ipywidgets as widgets

    kind = widgets.IntSlider if all(isinstance(v, int) for v in (low, high, step, start)) else widgets.FloatSlider
    return kind(value=start, min=low, max=high, step=step, description=name, continuous_update=False)
