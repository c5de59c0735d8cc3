"""Reports in headless Chromium: light and dark, on phones and desktops, by keyboard, with axe, without a network.

They need Chromium (`$CHROMIUM`, else `chromium` of the PATH), Playwright and axe-playwright-python, which carries axe.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from jaxafl.plot import report
from tests.reported import comparison, many, run, sweep

pytestmark = pytest.mark.browser

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
FORMS = {"run": run, "sweep": sweep, "comparison": comparison, "many": lambda: many(40, 60)}
QUIET = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-sync"
COLOURS_OF = """one => new Set(new Uint32Array(
    one.getContext('2d').getImageData(0, 0, one.width, one.height).data.buffer)).size"""
SETTINGS = [(scheme, width) for scheme in ("light", "dark") for width in (360, 1280)]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no Chromium: install chromium, or name it in $CHROMIUM")
    playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright: pip install playwright")
    with playwright.sync_playwright() as running:
        found = running.chromium.launch(executable_path=CHROMIUM, args=[*QUIET.split(), "--disable-component-update"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pathlib.Path]:
    folder = tmp_path_factory.mktemp("reports")
    return {form: report(make(), folder / f"{form}.html") for form, make in FORMS.items()}


@pytest.fixture
def opened(browser: Any, pages: dict[str, pathlib.Path], request: pytest.FixtureRequest) -> Iterator[Any]:
    """A page, without a network; afterwards, that it asked for nothing but itself and had no errors."""
    form, scheme, width = request.param
    size = {"width": width, "height": 900}
    context = browser.new_context(viewport=size, color_scheme=scheme, offline=True)
    page, asked, errors = context.new_page(), [], []
    page.on("request", lambda one: asked.append(one.url))
    page.on("console", lambda one: errors.append(one.text))
    page.on("pageerror", lambda one: errors.append(str(one)))
    page.goto(pages[form].as_uri())
    yield page
    assert not errors
    assert {url.partition("#")[0] for url in asked if not url.startswith("data:")} == {pages[form].as_uri()}
    context.close()


def of(*forms: str, settings: Any = (("light", 1280),)) -> pytest.MarkDecorator:
    cases = [(form, *setting) for form in forms for setting in settings]
    return pytest.mark.parametrize("opened", cases, indirect=True, ids=["-".join(map(str, case)) for case in cases])


def pixels(page: Any, key: str) -> str:
    """What is drawn in a figure."""
    return page.eval_on_selector(f"#figure-{key} canvas", "canvas => canvas.toDataURL()")


@of(*FORMS, settings=SETTINGS)
def test_the_page_is_as_wide_as_the_screen_and_figures_are_drawn(opened: Any) -> None:
    assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth")
    for canvas in opened.query_selector_all("canvas"):
        assert canvas.evaluate(COLOURS_OF) > 10
        assert canvas.bounding_box()["width"] > 250


@of(*FORMS, settings=SETTINGS)
def test_axe_finds_no_violation(opened: Any) -> None:
    carried = importlib.util.find_spec("axe_playwright_python")
    if carried is None or carried.origin is None:
        pytest.skip("no axe: pip install axe-playwright-python")
    source = os.environ.get("AXE") or pathlib.Path(carried.origin).with_name("axe.min.js")
    opened.evaluate(pathlib.Path(source).read_text(encoding="utf-8"))
    opened.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    found = opened.evaluate("axe.run(document, { resultTypes: ['violations', 'incomplete'] })")
    said = [(one["impact"], one["id"], one["nodes"][0]["html"][:200]) for one in found["violations"]]
    assert not said
    assert len(found["passes"]) > 10


@of("run")
def test_arrow_keys_read_values_and_plus_and_zero_change_the_range(opened: Any) -> None:
    figure = opened.locator("#figure-curves")
    figure.locator("canvas").focus()
    opened.keyboard.press("End")
    last = 100 * float(run()["accuracy"][-1])
    assert f"{float(f'{last:.4g}'):g}" in figure.locator(".readout").inner_text()
    opened.keyboard.press("ArrowLeft")
    before = 100 * float(run()["accuracy"][-2])
    assert f"{float(f'{before:.4g}'):g}" in figure.locator(".readout").inner_text()
    whole = pixels(opened, "curves")
    assert figure.locator(".whole").is_disabled()
    opened.keyboard.press("+")
    assert figure.locator(".whole").is_enabled() and pixels(opened, "curves") != whole
    opened.keyboard.press("0")
    assert figure.locator(".whole").is_disabled()
