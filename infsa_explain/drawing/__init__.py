"""Arrays become pictures: colour scales, heat maps, figures with titles, picture files.

May import: ``data`` and the ground floor. What needs a model is drawn in ``viewing``.
"""
