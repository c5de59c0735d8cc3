"""Figures of results: most functions take one result, a dict of results by name, or a sweep, and return the figure.

The functions work without a display: none opens a window or changes Matplotlib's global state. A `path` with the ending
of another format raises `ValueError`, and one that cannot be written an `OSError`.
"""

from jaxafl.plot.bound import bound
from jaxafl.plot.clients import accuracy_vs_participation, client_spread
from jaxafl.plot.confusion import confusion
from jaxafl.plot.curves import accuracy_vs_bytes, accuracy_vs_steps, accuracy_vs_time, comparison, epsilon_vs_time
from jaxafl.plot.heat_map import heat_map
from jaxafl.plot.plan import plan
from jaxafl.plot.report.page import report
from jaxafl.plot.staleness import staleness_histogram
from jaxafl.plot.timeline import timeline

__all__ = [
    "accuracy_vs_bytes",
    "accuracy_vs_participation",
    "accuracy_vs_steps",
    "accuracy_vs_time",
    "bound",
    "client_spread",
    "comparison",
    "confusion",
    "epsilon_vs_time",
    "heat_map",
    "plan",
    "report",
    "staleness_histogram",
    "timeline",
]


def __dir__() -> list[str]:
    """Returns the functions, without the modules that define them."""
    return __all__
