// Parts of the document. Text of models enters it only as text nodes, or through Temml with trust off.

const FLAGS = ["cut off", "no final answer", "grading failed"];
const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3], [4, 4], [12, 3], [1, 2]];
const FEW = 60; // with fewer steps than this, each is drawn as a point with its error

function h(tag, props, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(props ?? {}))
    if (key.startsWith("on")) element[key] = value;
    else if (value != null && value !== false) element.setAttribute(key, value);
  element.append(...children.flat().filter((child) => child != null && child !== false));
  return element;
}
function number(x, digits = 3) {
  const rounded = +x?.toPrecision(digits), tiny = rounded && Math.abs(rounded) < 1e-4;
  return Number.isFinite(rounded) ? (tiny ? rounded.toExponential() : `${rounded}`).replaceAll("-", "−") : "–";
}
const percent = (x) => (Number.isFinite(x) ? (100 * x).toFixed(1).replace("-", "−") : "–");
const mean = (xs) => xs.reduce((a, b) => a + b, 0) / xs.length;
const standardError = (xs, m = mean(xs)) => Math.sqrt(mean(xs.map((x) => (x - m) ** 2)) / (xs.length - 1));
const cosine = (xs, ys) => xs.reduce((sum, x, i) => sum + x * ys[i], 0) / Math.hypot(...xs) / Math.hypot(...ys);
const nearest = (steps, at) => steps.reduce((a, b) => (Math.abs(b - at) < Math.abs(a - at) ? b : a), steps[0]);

const button = (text, onclick, props) => h("button", { type: "button", onclick, ...props }, text);
const cells = (tag, values, props) => values.flatMap((value) => (value === false ? [] : h(tag, props, value)));
const table = (label, heads, rows) => h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label },
  h("table", {}, h("thead", {}, h("tr", {}, cells("th", heads, { scope: "col" }))),
    h("tbody", {}, rows.map(([first, ...rest]) => h("tr", {}, h("th", { scope: "row" }, first), cells("td", rest))))));
function colour(name) { // canvases do not know CSS variables
  document.body.style.outlineColor = `var(--${name})`;
  return getComputedStyle(document.body).outlineColor;
}

// Text with typeset mathematics.

const BRACES = "\\{(?:[^{}]|\\{(?:[^{}]|\\{[^{}]*\\})*\\})*\\}";
const MATH = new RegExp("\\$\\$[^$]+\\$\\$|\\\\\\[[^]+?\\\\\\]|\\\\\\([^]+?\\\\\\)|" +
  "(?<!\\\\)\\$(?!\\s)[^$\\n]+?(?<!\\s)\\$(?!\\d)|\\\\boxed\\s*" + BRACES, "g");
function formula(tex, source = tex, displayMode = false) {
  const math = h("span", { title: source });
  try {
    const options = { throwOnError: true, trust: false, maxExpand: 200, displayMode };
    return tex.length > 2000 ? source : temml.render(tex, math, options) ?? math;
  } catch { return source; }
}
function prose(text) {
  let out = h("span"), end = 0;
  for (const { 0: match, index } of text.matchAll(MATH)) {
    const tex = match.replace(/^(\$\$?|\\[[(])|(\$\$?|\\[\])])$/g, "");
    out.append(text.slice(end, index), formula(tex, match, /^(\$\$|\\\[)/.test(match)));
    end = index + match.length;
  }
  out.append(text.slice(end));
  return out;
}
const tokens = (texts, values, full) => texts.map((text, i) => {
  const share = Math.min(1, Math.abs(values[i]) / full), hue = values[i] < 0 ? "--cold" : "--warm";
  const style = `background: color-mix(in srgb, var(${hue}) ${Math.round(60 * share)}%, transparent)`;
  return h("span", { style, title: number(values[i]), class: share > 0.5 && "strong" }, text);
});
function card({ head, text, final, body = prose(text), look = "" }) {
  const content = h("div", { class: "text" }, body);
  const fold = () => folds.setAttribute("aria-expanded", !content.classList.toggle("folded"));
  const folds = text.length > 700 && button(`Show all ${text.length} characters`, fold, { class: "quiet" });
  if (folds) fold();
  return h("article", { class: `card ${look}` },
    h("header", {}, h("b", {}, head), final != null && formula(final)), content, folds);
}

// Charts. Under the lines are bands or bars from `low` to `high` (seeds, errors, phases), and a histogram.

function drawUnder(u, x, lines, stacked, bars) {
  const draw = (values) => values.forEach((v, i) => v != null && c.lineTo(X(x[i]), Y(v)));
  const c = u.ctx, X = (v) => u.valToPos(v, "x", true), Y = (v) => u.valToPos(v, "y", true);
  const bar = (at, low, high, width) => c.fillRect(X(at) - width / 2, Y(high), width, Y(low) - Y(high));
  c.save();
  c.beginPath();
  c.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
  c.clip();
  c.fillStyle = colour("bar");
  for (const [at, top, width] of bars) bar(at, 0, top, X(width) - X(0) - 2);
  for (const s of lines.filter((s, i) => s.raw && u.series[i + 1].show)) {
    [c.strokeStyle, c.globalAlpha, c.lineWidth] = [s.colour, 0.35, devicePixelRatio];
    c.beginPath();
    draw(s.raw);
    c.stroke();
  }
  for (const s of lines.filter((s, i) => s.low && u.series[i + 1].show)) {
    const drawn = [...x.keys()].filter((i) => s.low[i] != null), errors = !s.band && drawn.length < FEW;
    [c.fillStyle, c.globalAlpha] = [s.colour, stacked ? 0.65 : errors ? 0.5 : 0.2];
    if (stacked || errors) {
      const width = stacked ? Math.max(1, X(1) - X(0) - 1) : 2 * devicePixelRatio;
      for (const i of drawn) bar(x[i], s.low[i], s.high[i], width);
    } else {
      c.beginPath();
      for (const i of drawn) c.lineTo(X(x[i]), Y(s.high[i]));
      for (const i of drawn.reverse()) c.lineTo(X(x[i]), Y(s.low[i]));
      c.fill();
    }
  }
  c.restore();
}
// The range of an axis around values from `least` to `most`. Equal values get one that does not enlarge rounding.
function axisRange(least, most) {
  if (most - least > 1e-9 * Math.max(Math.abs(least), Math.abs(most))) {
    const edge = 0.06 * (most - least);
    return [least - edge, most + edge];
  }
  if (!least) return [-0.05, 1.05];
  return least > 0 ? [0, least <= 1 && least > 0.5 ? 1.05 : 2 * least] : [2 * least, 0];
}
// The ticks of a logarithmic axis: 1, 2 and 5 times the powers of ten, or evenly spaced ones if there are few of those.
function logTicks(low, high) {
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const powers = [...Array(last - first + 1).keys()].map((i) => 10 ** (first + i));
  const ticks = powers.flatMap((power) => (last - first > 3 ? [power] : [power, 2 * power, 5 * power]))
    .filter((tick) => tick >= low && tick <= high);
  if (ticks.length > 2) return ticks;
  const wanted = (high - low) / 4, power = 10 ** Math.floor(Math.log10(wanted));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= wanted), from = Math.ceil(low / step);
  return [...Array(Math.floor(high / step) - from + 1).keys()].map((i) => step * (from + i));
}
function chart(place, spec) {
  const { title, caption, name, metric, x, series, stacked, bars = [], range, xRange, toStep, height = 200, log } = spec;
  const lines = series.map((s) => ({ ...s, known: s.y.filter((v) => v != null), colour: colour(`s${s.style % 7}`) }));
  const summaries = lines.map(({ label, known: k }) => `${label} from ${number(k[0])} to ${number(k.at(-1))}`);
  const frame = h("div", { role: "img", "aria-label": `${title}: ${summaries.join("; ")}` });
  const figure = place.appendChild(
    h("figure", { "data-metric": metric }, h("figcaption", {}, h("h2", {}, title),
      h("p", {}, name && h("code", {}, name), name && " · ", caption)), frame));
  const all = lines.flatMap((s) => [...s.known, ...(s.raw ?? []), ...(s.low ?? []), ...(s.high ?? [])])
    .filter((v) => v != null);
  const [least, most] = [Math.min, Math.max].map((of) => all.reduce((a, b) => of(a, b), all[0]));
  const isLog = log && !stacked && least > 0, grid = { stroke: colour("line"), width: 1 };
  const shownRange = range ?? (isLog ? [least / 1.1, 1.1 * most] : axisRange(stacked ? 0 : least, most));
  if (stacked && !range) shownRange[0] = 0;
  const axis = { stroke: colour("muted"), grid, ticks: { show: false }, size: 32 };
  const value = (s, i) => number(stacked ? s.y[i] - s.low[i] : s.y[i]);
  // The point at the cursor, or else the last one of a curve.
  const shownAt = (ys, i) => i ?? (toStep ? ys.findLastIndex((y) => y != null) : -1);
  figure.plot = new uPlot({
    width: frame.clientWidth, height, padding: [6, 10, 0, 0],
    cursor: { y: false, sync: toStep && { key: "step" }, points: { size: 7 } },
    scales: { x: { time: false, range: stacked ? (_, from, to) => [from - 0.5, to + 0.5] : xRange }, // no bar is cut
      y: { range: shownRange, distr: isLog ? 3 : 1 } },
    axes: [{ ...axis, incrs: toStep && [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000] },
      { ...axis, size: 58, values: (_, ticks) => ticks.map((v) => number(v, 4)),
        ...(isLog && { splits: () => logTicks(...shownRange), filter: (_, ticks) => ticks }) }],
    series: [{ label: toStep ? "step" : "p",
      value: (_, __, ___, i) => (toStep && i == null ? "last" : number(x[i], 4)) },
      ...lines.map((s) => ({
        label: s.label, stroke: s.colour, dash: stacked ? [] : DASHES[s.style % 7], spanGaps: true, pxAlign: 0,
        width: stacked ? 0 : 2, points: { show: s.known.length < FEW && !stacked && !!toStep, size: 6, fill: s.colour },
        value: (_, __, ___, i) => value(s, shownAt(s.y, i)) }))],
    hooks: { drawAxes: [(u) => drawUnder(u, x, lines, stacked, bars)] },
  }, [x, ...lines.map((s) => s.y)], frame);
  if (toStep) figure.plot.over.onclick = ({ detail }) => { // a double click resets the zoom instead
    clearTimeout(figure.clicked);
    const { idx } = figure.plot.cursor;
    if (detail < 2 && idx != null) figure.clicked = setTimeout(toStep, 250, x[idx]);
  };
}
