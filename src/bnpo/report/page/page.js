"use strict";
// What models wrote reaches the document as text nodes alone, or through Temml, which trusts nothing.

const $ = (id) => document.getElementById(id);
const FLAGS = { 1: "cut off", 2: "no box", 4: "failed grading" };
const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3], [4, 4], [12, 3], [1, 2]];
let data, opened = {}, S = {}, view, shown, limit, current = [], playing, writing, drawing = 0, width = innerWidth;

function h(tag, props, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(props ?? {}))
    if (key.startsWith("on")) element[key] = value;
    else if (value != null && value !== false) element.setAttribute(key, value);
  element.append(...children.flat().filter((child) => child != null && child !== false));
  return element;
}
const number = (x, digits = 3) => (Number.isFinite(x) ? `${+x.toPrecision(digits)}`.replaceAll("-", "−") : "–");
const mean = (xs) => xs.reduce((a, b) => a + b, 0) / xs.length;
const spread = (xs, m = mean(xs)) => Math.sqrt(mean(xs.map((x) => (x - m) ** 2)) / (xs.length - 1)); // of the mean
const nearest = (steps, at) => steps.reduce((a, b) => (Math.abs(b - at) < Math.abs(a - at) ? b : a), steps[0]);
const button = (text, onclick, props) => h("button", { type: "button", onclick, ...props }, text);
const more = (rows) => rows.length > limit && button("Show more", () => { limit *= 4; render(); });
const cells = (tag, values) => values.map((value) => h(tag, tag === "th" ? { scope: "col" } : {}, value));
const table = (label, heads, rows) => h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label },
  h("table", {}, h("thead", {}, h("tr", {}, cells("th", heads))),
    h("tbody", {}, rows.map(([first, ...rest]) => h("tr", {}, h("th", { scope: "row" }, first), cells("td", rest))))));
function colour(name) { // for canvases, which know no variables
  document.body.style.outlineColor = `var(--${name})`;
  return getComputedStyle(document.body).outlineColor;
}
function unpack(id) {
  const bytes = () => Uint8Array.from(atob($(id).textContent), (c) => c.charCodeAt(0));
  const stream = () => new Blob([bytes()]).stream().pipeThrough(new DecompressionStream("gzip"));
  return opened[id] ??= new Response(stream()).json();
}
const textOf = async (row) => (await unpack(`chunk${row.chunk}`))[row.place];

// What is shown is S, which the address repeats.

const address = (state) => "#" + new URLSearchParams(Object.entries(state).filter(([, v]) => v || v === 0));
const link = (change, text) => h("a", { href: address({ ...S, ...change }) }, text);
function go(change, replace) {
  S = { ...S, ...change };
  clearTimeout(writing);
  // A slider changes the address more often than browsers bear.
  if (replace) writing = setTimeout(() => history.replaceState(null, "", address(S)), 200);
  else history.pushState(null, "", address(S));
  render();
}
function field(label, name, options, fallback = options[0]?.[0]) {
  const choose = () => go({ [name]: select.value === `${fallback}` ? "" : select.value });
  const select = h("select", { name, onchange: choose }, options.map(([value, text]) => h("option", { value }, text)));
  select.value = S[name] || fallback;
  return h("label", {}, label, select);
}
const runField = (label, name, ...none) => data.runs.length > 1 &&
  field(label, name, [...none.map((text) => ["", text]), ...data.runs.map((run, i) => [`${i}`, run.name])]);

// Text, with its mathematics typeset.

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
  for (const { 0: found, index } of text.matchAll(MATH)) {
    const tex = found.replace(/^(\$\$?|\\[[(])|(\$\$?|\\[\])])$/g, "");
    out.append(text.slice(end, index), formula(tex, found, /^(\$\$|\\\[)/.test(found)));
    end = index + found.length;
  }
  out.append(text.slice(end));
  return out;
}
const asked = (prompt) => prompt.match(/<\|im_start\|>user\n([^]*?)<\|im_end\|>/)?.[1] ?? prompt;
const tokens = (texts, values, full) => texts.map((text, i) => {
  const share = Math.min(1, Math.abs(values[i]) / full), hue = values[i] < 0 ? "--cold" : "--warm";
  const style = `background: color-mix(in srgb, var(${hue}) ${Math.round(60 * share)}%, transparent)`;
  return h("span", { style, title: number(values[i]), class: share > 0.5 && "strong" }, text);
});
function card(head, text, found, kept, extra = "") {
  const colours = kept && { logprobs: [kept.logprobs, 4], gap: [kept.gap, 0.1] }[S.text];
  const body = h("div", { class: "text" }, colours?.[0] ? tokens(kept.texts, ...colours) : S.text ? text : prose(text));
  const fold = () => folds.setAttribute("aria-expanded", !body.classList.toggle("folded"));
  const folds = text.length > 700 && button(`show all ${text.length} characters`, fold, { class: "quiet" });
  if (folds) fold();
  const header = h("header", {}, h("b", {}, head), found != null && formula(found));
  return h("article", { class: `card ${extra}` }, header, body, folds);
}

// Charts: lines, and under them bars from `low` to `high`: errors, phases, a histogram.

function chart(place, { title, says, metric, x, series, stacked, bars = [], range, xRange, toStep, height = 200 }) {
  const lines = series.map((s) => ({ ...s, known: s.y.filter((v) => v != null), colour: colour(`s${s.style % 7}`) }));
  const told = lines.map(({ label, known: k }) => `${label} from ${number(k[0])} to ${number(k.at(-1))}`);
  const frame = h("div", { role: "img", "aria-label": `${title}: ${told.join("; ")}` });
  const figure = place.appendChild(
    h("figure", { "data-metric": metric }, h("figcaption", {}, h("h2", {}, title), h("p", {}, says)), frame));
  function under(u) {
    const c = u.ctx, X = (v) => u.valToPos(v, "x", true), Y = (v) => u.valToPos(v, "y", true);
    const draw = (at, low, high, width) => c.fillRect(X(at) - width / 2, Y(high), width, Y(low) - Y(high));
    c.fillStyle = colour("bar");
    for (const [at, top, width] of bars) draw(at, 0, top, X(width) - X(0) - 2);
    for (const s of lines.filter((s, i) => s.low && u.series[i + 1].show)) {
      c.fillStyle = s.colour;
      const errors = !stacked && !s.band && s.known.length < 60;
      c.globalAlpha = stacked ? 0.65 : errors ? 0.5 : 0.2;
      const width = errors ? 2 * devicePixelRatio : Math.max(1, u.bbox.width / x.length - !!stacked);
      x.forEach((at, i) => s.low[i] != null && draw(at, s.low[i], s.high[i], width));
    }
    c.globalAlpha = 1;
  }
  const all = lines.flatMap((s) => [...s.known, ...(s.low ?? []), ...(s.high ?? [])]).filter((v) => v != null);
  const [least, most] = [Math.min, Math.max].map((of) => all.reduce((a, b) => of(a, b), all[0]));
  const edge = 0.06 * (most - least || 0.1), grid = { stroke: colour("line"), width: 1 };
  const axis = { stroke: colour("muted"), grid, ticks: { show: false }, size: 32 };
  figure.plot = new uPlot({
    width: frame.clientWidth, height, padding: [6, 10, 0, 0],
    cursor: { y: false, sync: toStep && { key: "step" }, points: { size: 7 } },
    scales: { x: { time: false, range: xRange }, y: { range: range ?? [stacked ? 0 : least - edge, most + edge] } },
    axes: [axis, { ...axis, size: 54, values: (_, ticks) => ticks.map((v) => number(v, 4)) }],
    series: [{ label: toStep ? "step" : "p", value: (_, v) => number(v, 4) }, ...lines.map((s) => ({
      label: s.label, stroke: s.colour, dash: stacked ? [] : DASHES[s.style % 7], spanGaps: true, pxAlign: 0,
      width: stacked ? 0 : 2, points: { show: s.known.length < 60 && !stacked && !!toStep, size: 6, fill: s.colour },
      value: (_, v, __, i) => number(stacked && v != null ? v - s.low[i] : v) }))],
    hooks: { drawClear: [under] },
  }, [x, ...lines.map((s) => s.y)], frame);
  if (toStep) figure.plot.over.onclick = () => figure.plot.cursor.idx != null && toStep(x[figure.plot.cursor.idx]);
}

// The views: what is over each, and what fills it and returns a line about it.

const runOf = () => data.runs[+(S.run || 0)];
const stepsKept = (run) => [...new Set(data.rows.flatMap((r) => (r.watched || r.run !== (run ?? r.run) ? [] : r.step)))];
const idOf = (row) => data.questions[row.question].id;
const accuracy = (group, name) => mean(group.map((r) => r.rewards[data.runs[r.run].rewards.indexOf(name)] ?? r.reward));
const groupsWhere = (test) => [...data.groups.values()].filter(([row]) => test(row));
const density = (p, [alpha, beta, logB]) => Math.exp((alpha - 1) * Math.log(p) + (beta - 1) * Math.log1p(-p) - logB);
const weight = (p, fit) => (p > 0 && p < 1 ? 1 / density(fit[3] ?? p, fit) : 0);
const verdict = (value) => (value === 1 ? "✓ 1" : value === 0 ? "✗ 0" : number(value));
const words = (flags) => Object.keys(FLAGS).filter((flag) => flags & flag).map((flag) => FLAGS[flag]).join(", ");

const VIEWS = {
  curves: { title: () => data.runs.map((run) => run.name).join(", ") || "No runs",
    draw(place) {
      const keys = Object.keys(data.runs[0]?.config ?? {}).filter((key) => key !== "algo" &&
        new Set(data.runs.map((run) => JSON.stringify(run.config[key]))).size > 1);
      const heads = ["run", "algorithm", "seed", ...keys, "steps", "end", "reward", "pass@1", "s a step"];
      const way = (ends) => (ends ? `${number(ends[0])} → ${number(ends[1])}` : "–");
      place.append(table("Runs", heads, data.runs.map((run) => [run.name, run.config.algo, run.seed,
        ...keys.map((key) => `${run.config[key]}`), run.steps.at(-1) ?? 0, run.end,
        way(run.reward), way(run.pass1), way(run.seconds)])));
      const toStep = (at) => data.rows.length && go({ view: "answers", step: nearest(stepsKept(), at) });
      const grid = place.appendChild(h("div", { class: "grid" }));
      for (const spec of data.charts) chart(grid, { ...spec, toStep });
    },
  },

  density: { title: () => "What a question of accuracy p is worth",
    controls() {
      const steps = runOf()?.steps.filter((s) => s > 0) ?? [], names = Object.keys(runOf()?.fits ?? {});
      const slide = h("input", { type: "range", name: "step", max: steps.length - 1,
        oninput: () => go({ step: steps[slide.value] }, true) });
      slide.value = Math.max(0, steps.indexOf(+S.step));
      const tick = () => (slide.isConnected && +slide.value < +slide.max ? slide.oninput(slide.value++) : play.onclick());
      const play = button("▶ play", () => {
        playing = clearInterval(playing) ?? (playing ? null : setInterval(tick, 150));
        play.setAttribute("aria-pressed", !!playing);
      }, { "aria-pressed": "false" });
      return [runField("Run", "run"), names.length > 1 && field("Reward", "fit", names.map((n) => [n, n])), play,
        h("label", { class: "wide" }, "Step", slide)];
    },
    draw(place) {
      const run = +(S.run || 0), facts = data.runs[run], name = S.fit || Object.keys(facts?.fits ?? {})[0];
      const step = +(S.step || facts?.steps.find((s) => s > 0)), fit = facts?.fits[name]?.[step];
      if (!fit) return `step ${step}: no density; only bnpo fits one, and only to questions that differ`;
      const at = nearest(stepsKept(run), step);
      const m = facts.config.samples_per_question, x = [...Array(199).keys()].map((i) => (i + 1) / 200);
      const ps = groupsWhere((r) => r.run === run && r.step === at && !r.watched).map((group) => accuracy(group, name));
      const share = (k) => ps.filter((p) => Math.round(p * m) === k).length / ps.length;
      const bars = ps.length ? [...Array(m + 1).keys()].map((k) => [k / m, m * share(k), 1 / m]) : [];
      const grid = place.appendChild(h("div", { class: "grid two" })), both = { x, height: 320, xRange: [-0.04, 1.04] };
      chart(grid, { ...both, metric: "density", bars, title: `f(p; ${number(fit[0])}, ${number(fit[1])})`,
        says: ps.length ? `bars: the ${ps.length} questions of step ${at}, as a density` : "no answers were kept",
        series: [{ label: "f", style: 0, y: x.map((p) => density(p, fit)) }],
        range: [0, Math.max(4, ...bars.map((bar) => bar[1]))] });
      const line = (label, style, of) =>
        ({ label, style, y: x.map((p) => (p >= 1 / m && p <= 1 - 1 / m ? of(p) : null)) });
      chart(grid, { ...both, metric: "weight", title: "Weight of a question", range: [0, 4],
        says: "what its advantages R − p are multiplied by; where all answers are alike there are none",
        series: [line("BNPO: 1 / f", 0, (p) => weight(p, fit)), line("REINFORCE: 1", 2, () => 1),
          line("GRPO: 1 / σ", 1, (p) => Math.sqrt((m - 1) / m / (p * (1 - p))))] });
      const alike = fit[3] == null ? "" : "; all questions weigh the same";
      return `step ${step}: α ${number(fit[0])}, β ${number(fit[1])}${alike}`;
    },
  },

  answers: { title: () => "Answers",
    controls() {
      const search = h("input", { type: "search", name: "q", placeholder: "in questions and answers", value: S.q,
        oninput: () => go({ q: search.value }, true) });
      return [h("label", { class: "wide" }, "Search", search), runField("Run", "run", "all"),
        field("Step", "step", [["", "all"], ...stepsKept().sort((a, b) => a - b).map((s) => [s, s])]),
        field("Reward", "reward", [["", "any"], [1, "1 (right)"], [0, "0 (wrong)"], ["between", "between"]]),
        field("Only", "only", [["", "all"], ...Object.entries(FLAGS), ["equal", "all-equal groups"],
          ["watched", "watched questions"], ["tokens", "token by token"]]),
        field("Sort by", "sort",
          [["", "step"], ["reward", "reward"], ["advantage", "advantage"], ["tokens", "length"], ["gap", "gap"]])];
    },
    async draw(place) {
      const only = { equal: (r) => new Set(data.groups.get(r.group).map((o) => `${o.rewards}`)).size === 1,
        watched: (r) => r.watched, tokens: (r) => r.gap != null }[S.only] ?? ((r) => !S.only || r.flags & S.only);
      const value = (r) => !S.reward || (S.reward === "between" ? r.reward % 1 > 0 : r.reward === +S.reward);
      const is = (name) => (r) => !S[name] || r[name] === +S[name];
      let rows = data.rows.filter((r) => is("step")(r) && is("run")(r) && value(r) && only(r));
      if (S.q) {
        const has = (text) => text.toLowerCase().includes(S.q.toLowerCase());
        const asks = data.questions.map((question) => has(question.prompt));
        const hits = await Promise.all(rows.map(async (r) => asks[r.question] || has((await textOf(r))[0])));
        rows = rows.filter((_, i) => hits[i]);
      }
      if (S.sort) rows.sort((a, b) => (b[S.sort] ?? -Infinity) - (a[S.sort] ?? -Infinity));
      current = [...new Set(rows.map((r) => r.group))];
      const heads = ["question", "step", "reward", "advantage", "tokens", "gap", "", "end of the answer"];
      place.append(table("Answers", heads, await Promise.all(rows.slice(0, limit).map(async (r) => [
        link({ view: "question", run: r.run, step: r.step, question: idOf(r), answer: r.sample }, idOf(r)),
        `${r.step}${r.watched ? " watched" : ""}`, verdict(r.reward), number(r.advantage), r.tokens, number(r.gap, 2),
        words(r.flags), h("span", { class: "line" }, (await textOf(r))[0].slice(-160))]))), more(rows) || "");
      return `${rows.length} of ${data.rows.length} answers`;
    },
  },

  question: { title: () => (S.question ? `Question ${S.question}` : "No question chosen"),
    controls: () => [field("Show", "across", [["", "one step"], ["all", "across steps"]]),
      runField("Run", "run"), runField("Beside", "with", "–"),
      field("Text", "text", [["", "typeset"], ["source", "as written"], ["logprobs", "tokens: log-probability"],
        ["gap", "tokens: sampler-learner gap"]]),
      button("◀ previous", () => next(-1)), button("next ▶", () => next(1))],
    async draw(place) {
      const runs = [...new Set([+(S.run || 0), +(S.with || S.run || 0)])];
      const groups = groupsWhere((row) => idOf(row) === S.question && runs.includes(row.run));
      if (!groups.length) return "choose one under Answers; watched questions are there at many steps";
      const { prompt, reference } = data.questions[groups[0][0].question];
      place.append(h("div", { class: "asked" }, prose(asked(prompt))), h("p", {}, "Reference: ", formula(reference)),
        h("details", {}, h("summary", {}, "the whole prompt"), h("pre", {}, prompt)));
      const age = ([row]) => row.step - !row.watched; // updates of the policy that answered
      const x = [...new Set(groups.map(age))].sort((a, b) => a - b);
      const p = (run, at) => groups.filter((g) => g[0].run === run && age(g) === at).map((g) => accuracy(g))[0];
      chart(place, { title: "p(q)", metric: "p", x, height: 160, range: [-0.05, 1.05],
        says: "share of right answers, by the updates of the policy that gave them",
        series: runs.map((run) => ({ label: data.runs[run].name, style: run, y: x.map((at) => p(run, at) ?? null) })),
        toStep: (at) => go({ step: groups.find((group) => age(group) === at)[0].step, answer: "" }) });
      for (const run of runs) {
        const own = groups.filter(([row]) => row.run === run), at = nearest(own.map(([row]) => row.step), +S.step || 0);
        const strip = { class: "strip", tabindex: 0, role: "region", "aria-label": data.runs[run].name };
        const row = h("div", S.across ? strip : {});
        place.append(runs.length > 1 && own.length ? h("h2", {}, data.runs[run].name) : "", row);
        for (const group of own)
          if (S.across || group[0].step === at) row.append(await cards(group, group[0].step === at));
      }
      for (const chosen of place.querySelectorAll(".strip .chosen")) chosen.parentElement.scrollLeft = chosen.offsetLeft;
      return `groups of answers: ${groups.length}`;
    },
  },

  evaluations: { title: () => "Evaluations, problem by problem",
    controls() {
      const names = data.evals.map((e, i) => [`${i}`, e.name]);
      return names.length && [field("Base", "a", names), field("Beside", "b", names, `${names.length - 1}`),
        field("Problems", "changed", [["", "that changed"], ["gained", "gained"], ["lost", "lost"], ["all", "all"]])];
    },
    async draw(place) {
      if (!data.evals.length) return "no evaluation here: --eval-every makes them, or name folders of eval.py";
      const [a, b] = [data.evals[+(S.a || 0)], data.evals[+(S.b || data.evals.length - 1)]], parts = new Map();
      const base = new Map(a.problems.map(([set, id, right], j) => [`${set} ${id}`, [j, mean(right)]]));
      const pairs = b.problems.flatMap(([set, id, right], i) => {
        const key = `${set} ${id}`, [question, reference, subject, level] = data.problems[key] ?? [];
        if (!base.has(key)) return [];
        const [j, from] = base.get(key), change = mean(right) - from;
        const pair = { id, key, question, reference, i, j, from, change };
        for (const part of [set, subject, level && `level ${level}`])
          if (part) parts.has(part) ? parts.get(part).push(pair) : parts.set(part, [pair]);
        return [pair];
      });
      const scored = (values) => `${number(100 * mean(values))} ± ${number(100 * spread(values), 2)}`;
      place.append(table("Scores", ["", "problems", `${a.name}, %`, `${b.name}, %`, "difference", "gained", "lost"],
        [...parts].sort(([p], [q]) => p.localeCompare(q)).map(([part, of]) => [part, of.length,
          scored(of.map((p) => p.from)), scored(of.map((p) => p.from + p.change)), scored(of.map((p) => p.change)),
          of.filter((p) => p.change > 0).length, of.filter((p) => p.change < 0).length])));
      const open = pairs.find((p) => p.key === S.problem);
      if (open) {
        const answers = (texts, right) => texts.map(([text, found], k) =>
          card(verdict(right[k]), text, found, null, right[k] ? "" : "wrong"));
        const side = async (e, i) => h("section", { class: "side" }, h("h2", {}, e.name),
          e.chunk == null ? "left out" : answers((await unpack(`chunk${e.chunk}`))[i], e.problems[i][2]));
        place.append(h("h2", {}, open.id), h("div", { class: "asked" }, prose(open.question ?? "")),
          h("p", {}, "Reference: ", formula(open.reference ?? "–")),
          h("div", { class: "grid two" }, await side(a, open.j), await side(b, open.i)));
      }
      const wanted = { gained: ({ change }) => change > 0, lost: ({ change }) => change < 0, all: () => true };
      const rows = pairs.filter(wanted[S.changed] ?? (({ change }) => change));
      rows.sort((p, q) => Math.abs(q.change) - Math.abs(p.change));
      const way = (change) => (change > 0 ? "▲ gained" : change < 0 ? "▼ lost" : "");
      place.append(table("Problems", ["problem", "base", "beside", "", "question"], rows.slice(0, limit).map((p) => [
        link({ problem: p.key }, p.id), number(p.from), number(p.from + p.change), way(p.change),
        h("span", { class: "line" }, p.question ?? "")])), more(rows) || "");
      return `${pairs.length} problems in both; standard errors are over problems, those of differences over pairs`;
    },
  },
};
async function cards(group, chosen) {
  const [{ run, step, watched }] = group, at = step + watched; // the batch of the same policy, whose fit is meant
  const fits = Object.entries(data.runs[run].fits).map(([name, steps]) => [name, steps[at]]).filter(([, fit]) => fit);
  const told = fits.map(([name, fit]) => [name, `Beta(${number(fit[0])}, ${number(fit[1])}),`,
    `weight ${number(weight(accuracy(group, name), fit))}`].join(" "));
  const each = group.map(async (r) => {
    const look = `${r.reward === 0 ? "wrong" : ""} ${chosen && S.answer && +S.answer === r.sample ? "focus" : ""}`;
    const says = [verdict(r.reward), r.advantage != null && `advantage ${number(r.advantage)}`, `${r.tokens} tokens`];
    return card([...says, words(r.flags)].filter(Boolean).join("  "), ...(await textOf(r)), look);
  });
  const title = watched ? `After step ${step}, watched` : `Step ${step}`;
  return h("section", { class: chosen ? "group chosen" : "group" },
    h("h2", {}, `${title}: p = ${number(accuracy(group))}`), h("p", {}, told.join("; ") || "no fit"),
    h("div", { class: "cards" }, await Promise.all(each)));
}
function next(by) {
  const list = (current.length ? current : [...data.groups.keys()]).map((key) => data.groups.get(key)[0]);
  const at = list.findIndex((r) => r.step === +S.step && r.run === +(S.run || 0) && idOf(r) === S.question);
  const row = list[Math.max(0, Math.min(list.length - 1, at + by))];
  go({ question: idOf(row), step: row.step, run: row.run, answer: "" });
}

async function render() {
  const turn = ++drawing, old = [...$("view").children], figures = [...$("view").querySelectorAll("figure")];
  const usual = S.question ? "question" : S.step ? "answers" : data.runs.length ? "curves" : "evaluations";
  const name = VIEWS[S.view] ? S.view : usual, shape = `${name} ${S.run ?? ""}`, form = $("controls");
  if (shape !== shown) { // what is being typed or dragged stays
    [view, shown, limit] = [name, shape, 100];
    const focused = document.activeElement.name;
    form.replaceChildren(...(VIEWS[view].controls?.() || []).filter(Boolean));
    form.elements[focused]?.focus();
    for (const a of document.querySelectorAll("nav a")) a.toggleAttribute("aria-current", a.hash === `#view=${view}`);
  }
  $("title").textContent = VIEWS[view].title();
  const place = $("view").appendChild(h("div")), says = await VIEWS[view].draw(place), notes = data.leftOut;
  if (turn !== drawing) return place.remove();
  for (const element of [...old, ...figures]) element.plot?.destroy() ?? element.remove();
  $("says").textContent = [says ?? "", ...notes.map((note) => `left out: ${note}`)].join(" ").trim();
}
document.onkeydown = (event) => {
  if (/INPUT|SELECT/.test(event.target.tagName) || event.ctrlKey || event.metaKey || event.altKey) return;
  const by = { n: 1, p: -1 }[event.key], links = [...document.querySelectorAll("#view th a")];
  if (event.key === "/") {
    if (view !== "answers") go({ view: "answers" });
    $("controls").q.focus(event.preventDefault());
  } else if (by && view === "question") next(by);
  else if (by) links[Math.max(0, Math.min(links.length - 1, links.indexOf(document.activeElement) + by))]?.focus();
};
matchMedia("(prefers-color-scheme: dark)").onchange = () => render();
onresize = () => { if (innerWidth !== width) render(width = innerWidth); };
onpopstate = () => { S = Object.fromEntries(new URLSearchParams(location.hash.slice(1))); shown = null; render(); };
unpack("data").then((content) => {
  data = content;
  for (const row of data.rows) row.group = [row.run, row.step, row.watched, row.question].join(" ");
  data.groups = Map.groupBy(data.rows, (row) => row.group);
  $("made").textContent = `made ${data.made}`;
  for (const name of Object.keys(VIEWS))
    document.querySelector("nav").append(h("a", { href: `#view=${name}` }, name[0].toUpperCase() + name.slice(1)));
  onpopstate();
});
