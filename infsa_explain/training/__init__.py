"""Training: recipes, the loop, held-out accuracy, model cards.

May import: every room but ``bench`` and ``cli``.
"""
