"""Studies: comparisons of methods, and searches for options."""

from jaxafl.study.compare import compare
from jaxafl.study.comparison import Comparison
from jaxafl.study.tune import tune

__all__ = ["Comparison", "compare", "tune"]
