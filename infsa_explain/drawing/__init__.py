"""Arrays become pictures: colour scales, heat maps, figures with titles, picture files.

May import: ``data`` and the modules below it; no models. Nothing is re-exported, because charts are
used without matplotlib and the other modules import it.
"""
