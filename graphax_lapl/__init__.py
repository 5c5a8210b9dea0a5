"""Derivatives in JAX by vertex elimination on the computational graph."""

import lazy_loader

# What there is, and where, is in the stub beside this file. A module is imported when something of
# it is first asked for: all of them take half as long as JAX itself.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

__version__ = "0.1.0"
