"""What is in a drawn figure: its panels, colour bars, pixels and words."""

from __future__ import annotations

import io

from PIL import Image


def panels(drawn):
    """The axes with a picture in them, from the top left."""
    return [axes for axes in drawn.axes if axes.images]


def bars(drawn):
    """The axes of the colour bars, beside a panel or beside the figure."""
    own = [bar for axes in drawn.axes for bar in axes.child_axes]
    return own + [axes for axes in drawn.axes if not axes.images and axes.has_data()]


def pixels(panel):
    return panel.images[0].get_array()


def words(drawn):
    """Every text in the panels."""
    return [text.get_text() for axes in drawn.axes for text in axes.texts]


def save(drawn):
    with io.BytesIO() as file:
        drawn.savefig(file, format="png")
        return Image.open(file).size
