"""Reports: what a page says of every form of results, that it needs no network, and that results stay text in it."""

from __future__ import annotations

import hashlib
import html.parser
import json
import pathlib
import re
from typing import Any

import numpy as np
import pytest
import xarray as xr

import jaxafl as afl
from jaxafl import clock, server
from jaxafl.cli import main
from jaxafl.options import UserError
from jaxafl.plot import report
from jaxafl.plot.report import settings
from jaxafl.plot.report.lines import MANY
from jaxafl.results import plain
from jaxafl.results.tables import decimals
from tests.reported import comparison, many, run, sweep
from tests.variants import slow_but

FORMS = {"run": run, "sweep": sweep, "comparison": comparison, "dict": lambda: {"a": run(), "b": run()}}
MOST = 1_500_000  # bytes of the page of a sweep of 200 members
VOID = {"meta", "link", "input", "br"}


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
    assert {"summary", "curves", "staleness", "participation", "settings", "again", "citation"} <= set(named)
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


@pytest.mark.parametrize(
    ("results", "path", "options", "error", "said"),
    [
        (run, "report.pdf", {}, UserError, "must end in .html"),
        (run, "missing/report.html", {}, FileNotFoundError, "create it first"),
        (lambda: 3, "report.html", {}, TypeError, "got 3"),
        (lambda: {}, "report.html", {}, UserError, "the dict is empty"),
        (lambda: {"a": 1}, "report.html", {}, TypeError, "dict of results by name"),
        (lambda: xr.Dataset(), "report.html", {}, UserError, "has no eval_time"),
        (run, "report.html", {"reference": "a"}, UserError, "leave it out"),
        (comparison, "report.html", {"reference": "c"}, UserError, "'c'"),
    ],
)
def test_mistakes_are_said_and_nothing_is_written(results, path, options, error, said, tmp_path) -> None:
    with pytest.raises(error, match=re.escape(said)):
        report(results(), tmp_path / path, **options)
    assert not list(tmp_path.iterdir())


def test_what_a_result_does_not_have_is_left_out(tmp_path: pathlib.Path) -> None:
    gone = ["staleness", "participation", "mean_staleness", "bytes_up", "bytes_down", "client_accuracy", "accuracy"]
    made = page(run().drop_vars(gone), tmp_path)
    assert [one["key"] for one in made.data["figures"]] == ["curves"]
    assert "staleness" not in made.ids and "accuracy" not in made.text and not re.search(r"\bnan\b", made.text)


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


def test_seeds_are_a_mean_in_a_band_over_the_time_that_all_cover(tmp_path: pathlib.Path) -> None:
    result = sweep()
    for line, _, x, y, low, high in page(result, tmp_path).series("curves", "loss|time"):
        own = result.isel({"server.learning_rate": line})
        begin, end = own["eval_time"].values[:, 0].max(), own["eval_time"].values[:, -1].min()
        np.testing.assert_allclose([x[0], x[-1]], [begin, end], rtol=1e-5)
        pairs = zip(own["eval_time"].values, own["loss"].values, strict=True)
        at = np.stack([np.interp(np.linspace(begin, end, len(x)), *pair) for pair in pairs])
        np.testing.assert_allclose(y, at.mean(axis=0), rtol=1e-4)
        np.testing.assert_allclose(high - y, at.std(axis=0, ddof=1), atol=1e-4)
        np.testing.assert_allclose(y - low, at.std(axis=0, ddof=1), atol=1e-4)


def test_seeds_that_a_limit_of_time_ended_are_drawn_up_to_it(tmp_path: pathlib.Path) -> None:
    limit = float(sweep()["eval_time"].max()) + 1.0
    ended = page(sweep().assign_attrs(until_time=limit), tmp_path)
    assert [x[-1] for _, _, x, *_ in ended.series("curves", "loss|time")] == pytest.approx([limit] * 2, rel=1e-5)
    last = ended.series("curves", "loss|server_steps")[0][2][-1]
    assert last == sweep()["eval_step"].values[..., -1].min()


def test_members_by_the_values_of_an_axis(tmp_path: pathlib.Path) -> None:
    result = sweep()
    ((line, name, x, y, low, _),) = page(result, tmp_path).series("axes", "loss|server.learning_rate")
    last = result["loss"].values[:, :, -1]
    assert (line, name) == (-1, "mean") and x.tolist() == [0, 1]
    np.testing.assert_allclose(y, last.mean(axis=1), rtol=1e-4)
    np.testing.assert_allclose(y - low, last.std(axis=1, ddof=1), atol=1e-4)


def test_a_sweep_over_two_options_has_a_heat_map_per_metric(tmp_path: pathlib.Path) -> None:
    one = sweep()
    both = xr.concat([one, one.assign(accuracy=one.accuracy + 0.01)], "client.steps").assign_coords(
        {"client.steps": [2, 4]}
    )
    both = both.transpose("server.learning_rate", "client.steps", ...)
    failed = (both["server.learning_rate"] == 0.5) & (both["client.steps"] == 2)
    both["failed_step"] = xr.where(failed, 3, xr.full_like(both["seed"], -1))
    page = Page(report(both, tmp_path / "report.html"))
    shades = [attributes for attributes in page.all("span") if "--share" in (attributes.get("style") or "")]
    best = 100 * both.accuracy.isel(evaluation=-1).mean("seed").where(~failed).max().item()
    assert f"test accuracy (%); best {best:.1f} %" in page.text and "failed" in page.text
    metrics = len([name for name in both if "evaluation" in both[name].dims and both[name].dtype.kind == "f"])
    assert len(shades) == 3 * metrics and sum(one["class"] == "best" for one in shades) == metrics
    assert "heat" not in Page(report(one, tmp_path / "one.html")).ids


def test_staleness_participation_and_bytes_add_up(tmp_path: pathlib.Path) -> None:
    result = run()
    made = page(result, tmp_path)
    ((_, _, _, shares, _, _),) = made.series("staleness", "")
    ages = result["staleness"].values[result["arrived"].values].astype(int)
    np.testing.assert_allclose(shares, 100 * np.bincount(ages) / ages.size, rtol=1e-4)
    ((_, _, _, arrivals, _, _),) = made.series("participation", "participation")
    np.testing.assert_array_equal(arrivals, result["participation"].values)
    up, down = made.series("communication", "")
    assert (up[1], down[1]) == ("up", "down")
    np.testing.assert_allclose(up[3][-1], result["bytes_up"].values.sum() / 1e6, rtol=1e-5)
    np.testing.assert_allclose(down[3][-1], result["bytes_down"].values.sum() / 1e6, rtol=1e-5)


def test_the_spread_of_clients_is_that_of_their_accuracies(tmp_path: pathlib.Path) -> None:
    result = run()
    (_, _, _, median, low, high), (_, _, _, worst, _, _) = page(result, tmp_path).series("clients", "time")
    accuracy = 100 * result["client_accuracy"].values
    np.testing.assert_allclose(median, np.median(accuracy, axis=1), rtol=1e-4)
    np.testing.assert_allclose([low, high], np.percentile(accuracy, [10, 90], axis=1), rtol=1e-4, atol=1e-9)
    np.testing.assert_allclose(worst, accuracy.min(axis=1), rtol=1e-4)  # one of eight


def test_large_staleness_has_few_bins_that_add_up(tmp_path: pathlib.Path) -> None:
    result = run()
    result["staleness"][:] = np.arange(result["staleness"].size).reshape(result["staleness"].shape) * 7
    ((_, _, _, shares, _, _),) = page(result, tmp_path).series("staleness", "")
    assert len(shares) <= 40
    assert shares.sum() == pytest.approx(100, abs=1e-3)


def test_runs_that_failed_stopped_or_have_not_run_are_told(tmp_path: pathlib.Path) -> None:
    assert "ended early" not in page(run(), tmp_path).text
    stopped = page(run().assign_attrs(stopped="accuracy is over 0.3"), tmp_path).text
    assert "The run ended early" in stopped and "accuracy is over 0.3" in stopped
    failed = run().assign_attrs(failed_step=3, failed_client=5)
    failed["accuracy"][2:] = np.nan
    text = page({"good": run(), "bad": failed}, tmp_path).text
    assert "1 of 2 runs ended early" in text and "bad: failed" in text
    assert "not finite at server step 3, after an update of client 5" in text
    waiting = run()
    for name in ("time", "accuracy", "loss", "eval_time"):
        waiting[name] = waiting[name] * np.nan
    waiting["staleness"][:] = np.nan
    assert "has not run" in page({"good": run(), "late": waiting}, tmp_path).text
    assert "has not run" in page(waiting, tmp_path).text


def test_a_failed_seed_leaves_its_member_without_a_mean(tmp_path: pathlib.Path) -> None:
    result = sweep()
    result["failed_step"] = (("server.learning_rate", "seed"), [[-1, -1], [-1, 4]])
    text = page(result, tmp_path).text
    assert "(1 of 2 missing)" in text and "1 runs failed or have not run; they are left out" in text


def test_the_paired_table_is_that_of_the_comparison(tmp_path: pathlib.Path) -> None:
    found = comparison()
    text = page(found, tmp_path, reference="b").text
    (gap,) = found.differences("b").values()
    places = decimals([100 * own.std for own in found.summary().values()])
    assert f"{100 * gap.mean:+.{places}f} [".replace("-", "−") in text
    assert gap.verdict in text and f"{gap.p:.3f}" in text and "the reference" in text


def test_settings_are_in_tables_that_are_the_same_or_differ(tmp_path: pathlib.Path) -> None:
    result = sweep()
    text = page(result, tmp_path).text
    assert "Options in which they differ" in text and "server.learning_rate" in text
    assert "Clock, the same for all" in text and "lognormal(" in text and "0, 1" in text


PARTS = [
    clock.free_running(concurrency=4, buffer=2, durations=clock.uniform(1, 5) * clock.constant(0.1, per="step")),
    clock.free_running(concurrency=4, durations=(clock.constant(1.0) + clock.suspension(0.1)) * clock.uniform(1, 2)),
    clock.free_running(concurrency=4, durations=clock.constant(1.0) + (clock.constant(2.0) + clock.uniform(1, 2))),
    clock.synchronous(durations=clock.lognormal(0.0, 1.0)),
    clock.bernoulli(upload=0.5),
    server.fedasync(alpha=0.5, staleness="polynomial", exponent=0.5),
    server.fedbuff(momentum=0.5),
    server.fadas(0.003),
    server.asyncfeded(base_rate=0.5, eps=1.0, target_staleness=3.0, kappa=0.05),
]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_the_code_of_a_part_makes_it_again(part: Any) -> None:
    described = json.loads(json.dumps(plain(part)))
    room = server if isinstance(part, server.Server) else clock
    assert plain(eval(settings.written(described, room), {"afl": afl})) == plain(part)


def test_the_code_of_a_run_is_python_with_its_seed_and_steps(tmp_path: pathlib.Path) -> None:
    code = next(text for tag, text in page(run(), tmp_path).texts if tag == "code")
    compile(code, "again", "exec")
    assert "sim.run(server_steps=24, eval_every=6, seed=3)" in code and "afl.server.fedbuff(" in code
    assert "precision" not in code
    code = next(text for tag, text in page(sweep(), tmp_path).texts if tag == "code")
    assert "afl.sweep(sim, {'server.learning_rate': [0.5, 1.0], 'seed': [0, 1]}, server_steps=24" in code


@pytest.mark.slow
def test_a_run_in_another_precision_says_so(tmp_path: pathlib.Path) -> None:
    sim = afl.Simulation(
        afl.data.synthetic(1, 1, clients=2, max_size=20),
        afl.models.logistic(10),
        afl.Client(steps=1, batch_size=4, learning_rate=0.1),
        afl.server.fedasync(),
        afl.clock.free_running(concurrency=1, durations=afl.clock.uniform(1, 2)),
        precision="bfloat16",
    )
    result = sim.run(1)
    assert result.attrs["precision"] == "bfloat16" and run().attrs["precision"] == "float32"
    assert "    precision='bfloat16',\n)" in next(text for tag, text in page(result, tmp_path).texts if tag == "code")


def test_a_result_says_what_to_cite_and_its_page_does_once(tmp_path: pathlib.Path) -> None:
    entries = run().attrs["citation"].split("\n\n")
    assert any("nguyen2022" in entry for entry in entries)
    text = page({"a": run(), "b": run()}, tmp_path).text
    assert all(text.count(entry) == 1 for entry in entries)
    old = run()
    del old.attrs["citation"]
    assert "@software{jaxafl" in page(old, tmp_path).text


@pytest.mark.slow
def test_the_page_of_200_members_is_small_and_offers_axes_not_boxes(tmp_path: pathlib.Path) -> None:
    path = report(many(200), tmp_path / "report.html")
    assert path.stat().st_size < MOST
    made = Page(path)
    assert len(made.data["lines"]) == 200 and not made.all("input")
    assert [one["data-axis"] for one in made.all("select") if "data-axis" in one] == [
        "server.learning_rate",
        "client_rate",
    ]
    assert "of 200 members the best is" in made.text


def test_results_of_the_quickstart_are_methods(tmp_path: pathlib.Path) -> None:
    from jaxafl.cli.quickstart import joined

    made = page(joined({"FedBuff": run(), "FedAsync": run()}), tmp_path)
    assert [line["name"] for line in made.data["lines"]] == ["FedBuff", "FedAsync"]
    assert "fedbuff" in made.text and "learning_rate" in made.text


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_colours_of_lines_contrast_with_the_paper_and_differ(theme: int) -> None:
    def luminance(colour: str) -> float:
        channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [own / 12.92 if own <= 0.04045 else ((own + 0.055) / 1.055) ** 2.4 for own in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    style = (pathlib.Path(settings.__file__).parent / "page.css").read_text()
    pairs = dict(re.findall(r"--([\w-]+): light-dark\(([^()]+)\)", style.replace("var(--ink)", "ink")))
    ink, paper = (pairs[name].split(", ")[theme] for name in ("ink", "paper"))
    found = [pairs[f"line-{place}"].split(", ")[theme].replace("ink", ink) for place in range(MANY)]
    assert len(set(found)) == MANY
    for colour in found:
        low, high = sorted((luminance(colour), luminance(paper)))
        assert (high + 0.05) / (low + 0.05) >= 3 - 0.02  # WCAG 2.2, 1.4.11, of rounded channels


def test_the_library_is_the_one_that_was_published_and_its_licence_is_in_the_page(tmp_path: pathlib.Path) -> None:
    library = pathlib.Path(settings.__file__).parent / "chart.umd.min.js"
    digest = "87364cc2b2a76a6684929e7d6b80b18a897794db38400caff1fcf1791c6925d2"  # of chart.js 4.6.1 on npm
    assert hashlib.sha256(library.read_bytes()).hexdigest() == digest
    source = page(run(), tmp_path).source
    assert "Chart.js v4.6.1" in source and "Permission is hereby granted" in source


@pytest.mark.slow
def test_the_command_writes_runs_and_pairs_sweeps_over_the_same_seeds(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    afl.save(run(), "one.nc")
    for name, result in comparison().results.items():
        afl.save(result, f"{name}.nc")
    assert main(["report", "one.nc"]) == 0
    assert "wrote report.html" in capsys.readouterr().out
    assert main(["report", "a.nc", "b.nc", "--reference", "b", "--output", "both.html", "--title", "Both"]) == 0
    both = Page(tmp_path / "both.html")
    assert "Paired differences" in both.text and "minus b" in both.text and "Both" in both.text
    assert main(["report", "one.nc", "a.nc", "--output", "mixed.html"]) == 0
    assert "Paired differences" not in Page(tmp_path / "mixed.html").text
    capsys.readouterr()
    for arguments, said in (
        (["one.nc", "a.nc", "--reference", "a"], "sweeps over the same seeds"),
        (["nowhere.nc"], "there is no result file"),
        ([], "at least one result file"),
        (["one.nc", "--output", "page.png"], "must end in .html"),
    ):
        assert main(["report", *arguments]) == 2
        assert said in capsys.readouterr().err
