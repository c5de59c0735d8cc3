"""Studies: comparisons of methods, and searches for options."""

from jaxafl.study.comparison import Comparison, compare
from jaxafl.study.tune import tune

__all__ = ["Comparison", "compare", "tune"]
