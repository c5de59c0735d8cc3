"""Reports: what a page says of every form of results, that it needs no network, and that results stay text in it."""

from __future__ import annotations

import base64
import html.parser
import json
import pathlib
import re
from typing import Any

import numpy as np
import pytest
import xarray as xr

from jaxafl.plot import report
from jaxafl.results.tables.text import decimals
from tests.reported import comparison, run, sweep
from tests.variants import slow_but

FORMS = {"run": run, "sweep": sweep, "comparison": comparison, "dict": lambda: {"a": run(), "b": run()}}
VOID = {"meta", "link", "input", "br", "img"}


class Page(html.parser.HTMLParser):
    """What a test reads of a page: elements by name, its text, and whether every element is closed."""

    def __init__(self, path: pathlib.Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self._open: list[str] = []
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self._open[-1] if self._open else "", data))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def text(self) -> str:
        return " ".join(text for tag, text in self.texts if tag not in ("script", "style"))

    @property
    def ids(self) -> list[str]:
        return [attributes["id"] or "" for _, attributes in self.elements if "id" in attributes]

    @property
    def data(self) -> dict[str, Any]:
        (found,) = (text for tag, text in self.texts if tag == "script" and text.startswith('{"lines"'))
        return json.loads(found)

    def series(self, key: str, view: str) -> list[list[Any]]:
        """Of a view of a figure: line, name, x, y, low, high, as numbers."""
        (figure,) = (one for one in self.data["figures"] if one["key"] == key)
        pool = self.data["pool"]
        return [
            [line, name, *(None if at < 0 else np.asarray(pool[at], float) for at in places)]
            for line, name, *places in figure["views"][view]["series"]
        ]


def page(results: Any, folder: pathlib.Path, **options: Any) -> Page:
    return Page(report(results, folder / "report.html", **options))


@pytest.mark.parametrize("form", slow_but(FORMS, "run"))
def test_a_page_of_every_form_is_whole_and_in_order(form: str, tmp_path: pathlib.Path) -> None:
    made = page(FORMS[form](), tmp_path)
    headings = [tag for tag, _ in made.elements if re.fullmatch(r"h\d", tag)]
    assert headings[0] == "h1" and set(headings[1:]) == {"h2"}
    assert len(made.ids) == len(set(made.ids))
    links = [attributes["href"] or "" for attributes in made.all("a")]
    assert {link.removeprefix("#") for link in links} <= set(made.ids)
    named = [attributes["aria-labelledby"] for attributes in made.all("section")]
    assert {"summary", "curves", "staleness", "participation", "settings", "citation"} <= set(named)
    assert ("paired" in named) == (form == "comparison") and ("axes" in named) == (form == "sweep")
    assert all(attributes["aria-label"] for attributes in made.all("canvas"))
    assert all(len(made.all(tag)) == 1 for tag in ("main", "header", "footer", "nav", "title"))


@pytest.mark.parametrize("form", slow_but(FORMS, "run"))
def test_a_page_fetches_nothing_from_the_network(form: str, tmp_path: pathlib.Path) -> None:
    made = page(FORMS[form](), tmp_path)
    fetched = [
        value
        for _, attributes in made.elements
        for name, value in attributes.items()
        if name in ("src", "href", "srcset", "action", "data", "poster", "background")
    ]
    assert all(value and (value.startswith("#") or value == "data:,") for value in fetched)
    styles = "".join(text for tag, text in made.texts if tag == "style")
    assert "url(" not in styles and "@import" not in styles
    assert "sourceMappingURL" not in made.source
    (policy,) = (one["content"] or "" for one in made.all("meta") if one.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy and "http" not in policy


def test_whatever_comes_from_a_result_stays_text(tmp_path: pathlib.Path) -> None:
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"
    one = run().assign_attrs(
        title=evil, server=json.dumps({"name": evil, evil: evil}), citation=evil, stopped=evil, backend=evil
    )
    for results in (one, {evil: one, "b": one}):
        made = page(results, tmp_path, title=evil)
        assert len(made.all("script")) == 3 and not made.all("img")
        assert made.text.count(evil) >= 5
        assert not any(name.startswith("on") for _, attributes in made.elements for name in attributes)
        assert evil in json.dumps([line["name"] for line in made.data["lines"]], ensure_ascii=False).replace('\\"', '"')


def test_the_curves_are_those_of_the_result(tmp_path: pathlib.Path) -> None:
    result = run()
    made = page(result, tmp_path)
    ((line, _, x, y, low, high),) = made.series("curves", "accuracy|bytes")
    assert line == 0 and low is None and high is None
    np.testing.assert_allclose(x, result["eval_bytes"].values / 1e6, rtol=1e-5)
    np.testing.assert_allclose(y, 100 * result["accuracy"].values, rtol=1e-5)
    (figure,) = (one for one in made.data["figures"] if one["key"] == "curves")
    axes = {"time", "server_steps", "client_updates", "local_steps", "bytes"}
    assert {view.partition("|")[2] for view in figure["views"]} == axes
    metrics = {"accuracy", "loss", "clients_median_accuracy", "clients_worst_accuracy"}
    assert {view.partition("|")[0] for view in figure["views"]} == metrics


@pytest.mark.slow
def test_a_sweep_over_two_options_has_a_heat_map_per_metric(tmp_path: pathlib.Path) -> None:
    one = sweep()
    both = xr.concat([one, one.assign(accuracy=one.accuracy + 0.01)], "client.steps").assign_coords(
        {"client.steps": [2, 4]}
    )
    both = both.transpose("server.learning_rate", "client.steps", ...)
    both = both.assign({f"final_{name}": both[name].isel(evaluation=-1) for name in ("accuracy", "loss")})
    page = Page(report(both, tmp_path / "report.html"))
    pictures = [str(one["src"]).removeprefix("data:image/png;base64,") for one in page.all("img")]
    assert all(base64.b64decode(one).startswith(b"\x89PNG") for one in pictures)
    assert len(pictures) == 4  # of the validation set, too
    assert page.all("img")[0]["alt"] == "Heat map of the final test accuracy (%)"
    assert [attributes for attributes in page.all("details") if "open" in attributes] == page.all("details")[:1]
    assert "heat" not in Page(report(one, tmp_path / "one.html")).ids


def test_staleness_participation_and_bytes_add_up(tmp_path: pathlib.Path) -> None:
    result = run()
    made = page(result, tmp_path)
    ((_, _, _, shares, _, _),) = made.series("staleness", "")
    ages = result["staleness"].values[result["arrived"].values].astype(int)
    np.testing.assert_allclose(shares, 100 * np.bincount(ages) / ages.size, rtol=1e-4)
    ((_, _, _, arrivals, _, _),) = made.series("participation", "")
    np.testing.assert_array_equal(arrivals, result["participation"].values)
    assert "MB up" in made.text and f"{result['bytes_up'].values.sum() / 1e6:,.4g}" in made.text


def test_runs_that_failed_stopped_or_have_not_run_are_told(tmp_path: pathlib.Path) -> None:
    assert "accuracy is over 0.3" in page(run().assign_attrs(stopped="accuracy is over 0.3"), tmp_path).text
    failed = run().assign_attrs(failed_step=3, failed_client=5)
    failed["accuracy"][2:] = np.nan
    text = page({"good": run(), "bad": failed}, tmp_path).text
    assert "bad: failed" in text and "server step 3, after an update of client 5" in text
    waiting = run()
    for name in ("time", "accuracy", "loss", "eval_time"):
        waiting[name] = waiting[name] * np.nan
    waiting["staleness"][:] = np.nan
    assert "has not run" in page({"good": run(), "late": waiting}, tmp_path).text


@pytest.mark.slow
def test_the_paired_table_is_that_of_the_comparison(tmp_path: pathlib.Path) -> None:
    found = comparison()
    text = page(found, tmp_path, reference="b").text
    (gap,) = found.differences("b").values()
    places = decimals([100 * (gap.high - gap.low) / 2])
    assert f"{100 * gap.mean:+.{places}f} [".replace("-", "−") in text and f"], {gap.verdict}" in text
    assert "minus b, 95 % interval" in text and "verdicts of Student's t at 5 %" in text
