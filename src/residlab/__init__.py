"""residlab: the residual stream of a transformer: bound it, remove it, round it.

The library beside the book of the same name. Import from the module that defines what you need, for instance
``from residlab.theory.chebyshev import kappa_from_probability``; importing a package loads none of its modules.
"""

__version__ = "0.1.0"
