"""Scores become pictures: heat maps, figures, galleries, the inspector.

May import: ``data``, ``methods``, ``models``, ``vits`` and what is below them.
"""
