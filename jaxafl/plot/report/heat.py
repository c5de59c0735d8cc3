"""Heat maps of a report: pictures of the final metrics of a sweep over two options."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping

import xarray as xr

from jaxafl.plot.heat_map import heat_map
from jaxafl.plot.report.lines import Lines, label_of, lower, metrics_of
from jaxafl.plot.report.markup import Html, element, joined


def over_two_options(lines: Lines, results: Mapping[str, xr.Dataset]) -> Html:
    """Returns a picture per metric of one sweep over two options, the first open; empty for other results."""
    result = next(iter(results.values()))
    if len(results) > 1 or len(lines[0].place) != 2:
        return Html("")
    pictures: list[Html] = []
    for metric in metrics_of(lines):
        if f"final_{metric}" in result.variables and lower([result], metric) is not None:
            file = io.BytesIO()
            heat_map(result, metric).savefig(file, dpi=100)
            source = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
            picture = element("img", src=source, alt=f"Heat map of the final {label_of(metric)}")
            pictures.append(element("details", element("summary", label_of(metric)), picture, open=not pictures))
    return joined(pictures)
