"""Where does a Vision Transformer look, and is that attention any good?

Names are imported on first use, so that ``import infsa_explain`` is light; they are listed in
``__init__.pyi``. Extension points are in :mod:`infsa_explain.extensions`.
"""

import lazy_loader

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
