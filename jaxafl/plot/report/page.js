"use strict";
const { lines, pool, figures, colours } = JSON.parse(document.getElementById("data").textContent);
const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]];
const SHAPES = ["circle", "rect", "triangle", "rectRot"];
const DOTS = 40; // points of a line up to which each is marked
const charts = [];
const probe = document.body.appendChild(document.createElement("span"));
probe.hidden = true;

// a variable of the style sheet as the theme has it now
function colour(name, opacity = 1) {
  probe.style.color = `var(--${name})`;
  const found = getComputedStyle(probe).color;
  return opacity === 1 ? found : found.replace("rgb(", "rgba(").replace(")", `, ${opacity})`);
}

function element(name, attributes, ...inside) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...inside);
  return made;
}

// which lines are shown, and the place in the palette of those in colour: all of a few, the best of many
function chosen() {
  const boxes = [...document.querySelectorAll(".lines input")];
  const shown = lines.map((_, place) => !boxes.length || boxes[place].checked);
  const places = lines.map((_, place) => place);
  if (lines.length <= colours) return { shown, rank: places };
  const best = places.filter((place) => shown[place] && lines[place].score !== null)
    .sort((a, b) => lines[b].score - lines[a].score).slice(0, colours);
  return { shown, rank: places.map((place) => best.indexOf(place)) };
}

function number(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2);
  return Number(value.toPrecision(4)).toLocaleString("en");
}

function styled(view, series, rank, mean) {
  const grey = rank < 0, own = rank % colours, name = grey ? "faint" : mean ? "ink" : `line-${own}`;
  const drawn = colour(name);
  const marks = view.kind === "points" || series.x.length <= DOTS;
  return {
    order: grey ? 1 : 0, borderColor: drawn, pointBackgroundColor: drawn,
    backgroundColor: view.kind === "bars" ? drawn : colour(name, 0.18),
    borderWidth: view.kind === "bars" ? 0 : grey ? 1 : 2, borderDash: grey ? [] : DASHES[own % DASHES.length],
    pointStyle: SHAPES[own % SHAPES.length], pointRadius: grey || !marks ? 0 : view.kind === "points" && !mean ? 5 : 2.5,
    pointHoverRadius: 6,
  };
}

// the data sets of a view: a line, and before it the edges of its band
function datasets(view) {
  const { shown, rank } = chosen(), found = [];
  view.series.forEach(([line, name, x, y, low, high], at) => {
    if (line >= 0 && !shown[line]) return;
    const own = line < 0 ? at : rank[line];
    if (own < 0 && view.kind !== "lines") return;
    const values = { x: x < 0 ? [] : pool[x], y: pool[y] };
    const label = line < 0 ? name : lines[line].name || "all seeds";
    const points = (numbers) => (view.kind === "bars" ? numbers : values.x.map((place, i) => ({ x: place, y: numbers[i] })));
    const mean = view.kind === "points" && low >= 0, style = styled(view, values, own, mean);
    if (low >= 0 && own >= 0) {
      const edge = { ...style, band: true, borderWidth: 0, pointRadius: 0, pointHoverRadius: 0, order: 2, showLine: true };
      found.push({ ...edge, label: `${label}, low`, data: points(pool[low]), fill: false });
      found.push({ ...edge, label: `${label}, high`, data: points(pool[high]), fill: "-1" });
    }
    found.push({ ...style, label, data: points(values.y), fill: false, grey: own < 0, showLine: view.kind === "lines" || mean });
  });
  return found;
}

// all lines at one place of the x axis, the nearest point of each
Chart.Interaction.modes.column = (chart, event) => {
  const found = [];
  chart.data.datasets.forEach((set, index) => {
    if (set.band || set.grey) return;
    let best = null;
    chart.getDatasetMeta(index).data.forEach((point, place) => {
      const gap = Math.abs(point.x - event.x);
      if (!point.skip && (best === null || gap < best.gap)) best = { gap, element: point, index: place };
    });
    if (best) found.push({ element: best.element, datasetIndex: index, index: best.index });
  });
  const nearest = Math.min(...found.map((one) => Math.abs(one.element.x - event.x)));
  return found.filter((one) => Math.abs(one.element.x - event.x) <= nearest + 25);
};

const name = (view, place) => (view.labels ? view.labels[Math.round(place)] ?? "" : number(place));

function options(chart) {
  const { view } = chart, grid = { color: colour("rule") }, ticks = { color: colour("soft"), maxRotation: 60 };
  const x = { grid: { ...grid, display: false }, ticks: { ...ticks, includeBounds: !chart.range }, title: { display: !!view.x, text: view.x, color: colour("ink") } };
  if (view.kind === "bars") x.type = "category";
  else Object.assign(x, { type: "linear", min: chart.range?.[0], max: chart.range?.[1] });
  if (view.labels && view.kind !== "bars") {
    Object.assign(x, { min: -0.3, max: view.labels.length - 0.7 });
    Object.assign(x, { afterBuildTicks: (scale) => { scale.ticks = view.labels.map((_, value) => ({ value })); } });
    x.ticks.callback = (place) => view.labels[place];
  } else if (view.kind !== "bars") x.ticks.callback = number;
  const values = view.series.flatMap((one) => pool[one[3]]).filter((value) => value !== null);
  const least = Math.min(...values), share = view.y.endsWith("(%)") && Math.max(...values) <= 100;
  const afterDataLimits = (scale) => { // of bands, and of the space around the data
    if (least >= 0) scale.min = Math.max(scale.min, 0);
    if (share) scale.max = Math.min(scale.max, 100);
  };
  return {
    animation: false, responsive: true, maintainAspectRatio: false, normalized: false,
    interaction: { mode: "column", intersect: false },
    scales: { x, y: { grid, beginAtZero: view.kind === "bars", afterDataLimits, ticks: { ...ticks, callback: number },
      title: { display: true, text: view.y, color: colour("ink") } } },
    plugins: {
      legend: { display: false },
      tooltip: {
        filter: (item) => !item.dataset.band,
        callbacks: {
          title: (items) => (items.length ? `${view.x}: ${name(view, items[0].parsed.x)}` : ""),
          label: (item) => `${item.dataset.label}: ${number(item.parsed.y)}`,
        },
      },
    },
  };
}

function swatch(set) {
  const picture = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  picture.setAttribute("width", 30);
  picture.setAttribute("height", 12);
  picture.setAttribute("aria-hidden", "true");
  const bar = document.createElementNS("http://www.w3.org/2000/svg", "line");
  const thick = set.borderWidth === 0 ? 10 : 3;
  for (const [key, value] of Object.entries({ x1: 0, x2: 30, y1: 6, y2: 6, stroke: set.borderColor, "stroke-width": thick,
    "stroke-dasharray": set.borderWidth === 0 ? "" : set.borderDash.join(" ") })) bar.setAttribute(key, value);
  picture.append(bar);
  return picture;
}

function legend(chart) {
  const sets = chart.drawn.data.datasets.filter((set) => !set.band);
  const named = sets.filter((set) => !set.grey), grey = sets.length - named.length;
  const items = named.map((set) => element("li", {}, swatch(set), set.label));
  if (grey) items.push(element("li", {}, swatch({ ...sets.find((set) => set.grey), borderWidth: 2 }), `${grey} more`));
  if (!sets.length) items.push(element("li", {}, "Nothing to show: choose other lines or another view."));
  chart.figure.querySelector(".legend").replaceChildren(...(sets.length === 1 && lines.length === 1 ? [] : items));
}

function draw(chart) {
  const key = [...chart.figure.querySelectorAll("select")].map((one) => one.value).join("|");
  if (chart.view !== chart.views[key]) chart.range = null;
  chart.view = chart.views[key];
  chart.drawn?.destroy();
  Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
  chart.drawn = new Chart(chart.canvas, {
    type: { bars: "bar", points: "scatter" }[chart.view.kind] ?? "line",
    data: { labels: chart.view.labels ?? undefined, datasets: datasets(chart.view) },
    options: options(chart),
  });
  const { min, max } = chart.drawn.scales.x, whole = chart.figure.querySelector(".whole");
  if (!chart.range) chart.whole = [min, max];
  if (whole) whole.disabled = !chart.range;
  legend(chart);
  chart.figure.querySelector("figcaption .says").textContent = chart.view.says;
  chart.canvas.setAttribute("aria-label", `${chart.view.y} against ${chart.view.x || "lines"}. ${chart.view.says}`);
}

// the values at a place of the x axis, beside the pointer and as text
function point(chart, pixel) {
  const { drawn } = chart, found = Chart.Interaction.modes.column(drawn, { x: pixel });
  if (!found.length) return;
  drawn.setActiveElements(found);
  drawn.tooltip.setActiveElements(found, { x: pixel, y: drawn.chartArea.top });
  drawn.update("none");
  const values = found.map(({ datasetIndex, index }) => {
    const set = drawn.data.datasets[datasetIndex], own = set.data[index];
    return `${set.label} ${number(own?.y ?? own)}`;
  });
  const place = drawn.scales.x.getValueForPixel(found[0].element.x);
  chart.figure.querySelector(".readout").textContent = `${name(chart.view, place)}: ${values.join(", ")}`;
}

function keys(chart, event) {
  const { drawn } = chart, { left, right } = drawn.chartArea;
  const xs = [...new Set(drawn.data.datasets.flatMap((set, index) => (set.band || set.grey ? []
    : drawn.getDatasetMeta(index).data.map((one) => one.x))))].filter((x) => x >= left - 1 && x <= right + 1).sort((a, b) => a - b);
  if (!xs.length) return;
  const now = chart.at ?? -1;
  const to = { ArrowRight: now + 1, ArrowLeft: now < 0 ? xs.length - 1 : now - 1, Home: 0, End: xs.length - 1 }[event.key];
  if (to !== undefined) {
    chart.at = Math.max(0, Math.min(xs.length - 1, to));
    point(chart, xs[chart.at]);
  } else if (event.key === "+" || event.key === "-") zoom(chart, xs[chart.at] ?? (left + right) / 2, event.key === "+" ? 0.5 : 2);
  else if (event.key === "0" || event.key === "Escape") range(chart, null);
  else return;
  event.preventDefault();
}

function range(chart, to) {
  if (chart.view.labels) return;
  chart.range = to;
  chart.at = undefined;
  draw(chart);
}

function zoom(chart, pixel, factor) {
  const { min, max } = chart.drawn.scales.x, centre = chart.drawn.scales.x.getValueForPixel(pixel);
  const half = ((max - min) * factor) / 2;
  const [first, last] = chart.whole, to = [Math.max(centre - half, first), Math.min(centre + half, last)];
  range(chart, to[0] === first && to[1] === last ? null : to);
}

// a part of the x axis is shown by dragging over it
function dragging(chart) {
  let from = null;
  chart.canvas.addEventListener("pointerdown", (event) => { if (event.pointerType === "mouse") from = event.offsetX; });
  chart.canvas.addEventListener("pointerup", (event) => {
    if (from !== null && Math.abs(event.offsetX - from) > 12) {
      range(chart, [from, event.offsetX].map((x) => chart.drawn.scales.x.getValueForPixel(x)).sort((a, b) => a - b));
    }
    from = null;
  });
}

for (const { key, views } of figures) {
  const figure = document.getElementById(`figure-${key}`), canvas = figure.querySelector("canvas");
  const chart = { figure, canvas, views };
  charts.push(chart);
  canvas.addEventListener("keydown", (event) => keys(chart, event));
  dragging(chart);
  figure.querySelectorAll("select").forEach((one) => one.addEventListener("change", () => draw(chart)));
  figure.querySelector(".whole")?.addEventListener("click", () => range(chart, null));
}

const redraw = () => charts.forEach(draw);
document.querySelectorAll("#lines input").forEach((one) => one.addEventListener("change", redraw));

const theme = document.getElementById("theme"), prefers = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (document.documentElement.dataset.theme ?? (prefers.matches ? "dark" : "light")) === "dark";
function themed() {
  theme.setAttribute("aria-pressed", String(isDark()));
  redraw();
  document.querySelectorAll(".lines svg").forEach((one) => one.remove());
  document.querySelectorAll(".lines label").forEach((label, place) => {
    const own = place % colours;
    label.append(swatch({ borderColor: colour(`line-${own}`), borderWidth: 2, borderDash: DASHES[own % DASHES.length] }));
  });
}
theme.addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  themed();
});
prefers.addEventListener("change", themed);
themed();

document.querySelectorAll("thead button").forEach((button) => button.addEventListener("click", () => {
  const head = button.closest("th"), body = button.closest("table").tBodies[0], column = head.cellIndex;
  const down = head.getAttribute("aria-sort") !== "descending";
  const key = (row) => row.cells[column].dataset.key ?? row.cells[column].textContent;
  const compare = (a, b) => (a === "" || b === "" ? (a === "") - (b === "") : isNaN(a) || isNaN(b) ? b.localeCompare(a) : b - a);
  const rows = [...body.rows].sort((a, b) => compare(key(a), key(b)));
  body.append(...(down ? rows : rows.reverse()));
  for (const other of head.parentNode.cells) other.setAttribute("aria-sort", "none");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
}));

document.querySelectorAll("button[data-copy]").forEach((button) => button.addEventListener("click", async () => {
  const source = document.getElementById(button.dataset.copy), told = document.getElementById(`${button.dataset.copy}-copied`);
  try {
    await navigator.clipboard.writeText(source.textContent);
    told.textContent = "Copied.";
  } catch { // a browser that gives pages from files no clipboard
    getSelection().selectAllChildren(source);
    told.textContent = document.execCommand("copy") ? "Copied." : "Selected: copy it with Ctrl-C.";
  }
}));
