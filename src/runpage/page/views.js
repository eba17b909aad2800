// The views. Each has a title, perhaps controls, and a function that draws it and returns a message for the reader.

const recordedSteps = (run) => {
  const rows = data.rows.filter((row) => !row.watched && (run == null || row.run === run));
  return [...new Set(rows.map((row) => row.step))];
};
const idOf = (row) => data.questions[row.question].id;
const userText = (prompt) => prompt.match(/<\|im_start\|>user\n([^]*?)<\|im_end\|>/)?.[1] ?? prompt;

// Adds to an answer its rewards on [0, 1], their weighted mean as trained, and `right`, its reward of --signal.
// All of them are null where a reward could not be computed.
function grade(row) {
  const { ranges, weights, right } = data.runs[row.run], sum = (values) => values.reduce((a, b) => a + b, 0);
  row.units = row.rewards.map((x, k) => (x == null ? null : (x - ranges[k][0]) / (ranges[k][1] - ranges[k][0])));
  row.right = row.units[right];
  row.reward = row.units.includes(null) ? null : sum(row.units.map((x, k) => x * weights[k])) / sum(weights);
}
// The accuracy p of a question, by the weighted mean of the rewards or by the one called `name`.
function accuracy(group, name) {
  const k = data.runs[group[0].run].rewards.indexOf(name);
  return mean(group.map((r) => r.units[k] ?? r.reward).filter((value) => value != null));
}
const rightShare = (group) => mean(group.map((r) => r.right).filter((value) => value != null));
// Whether the answers of a group differ in a reward that counts.
function isMixed(group) {
  const { weights } = data.runs[group[0].run], known = group.filter((r) => r.reward != null);
  return known.some((r) => r.units.some((x, k) => weights[k] && x !== known[0].units[k]));
}
const groupsWhere = (test) => [...data.groups.values()].filter(([row]) => test(row));
const density = (p, { alpha, beta, logB }) =>
  Math.exp((alpha - 1) * Math.log(p) + (beta - 1) * Math.log1p(-p) - logB);
const weight = (p, fit) => (p > 0 && p < 1 ? 1 / density(fit.sharedP ?? p, fit) : 0);
const mark = (right) => (right === 1 ? "✓ " : right === 0 ? "✗ " : "");
const verdict = (value) => mark(value) + number(value);
const look = (right) => (right === 1 ? "right" : right === 0 ? "wrong" : "between");
const wordFor = (right) => (right == null ? "not graded" : look(right).replace("between", `reward ${number(right)}`));

// The kinds of answers of a group: those with one final answer and one verdict. Right and frequent ones come first.
async function kindsOf(group) {
  const answers = await Promise.all(group.map(async (row) => [row, ...(await textOf(row))]));
  const kinds = Map.groupBy(answers, ([row, , final]) => JSON.stringify([final, row.right]));
  return [...kinds.values()].map((alike) => ({ alike, final: alike[0][2], right: alike[0][0].right }))
    .sort((a, b) => b.right - a.right || b.alike.length - a.alike.length);
}
const kindText = ({ alike, final, right }) =>
  [`${alike.length} × `, final == null ? "no final answer" : formula(final), `, ${wordFor(right)}`];

function curves(place) {
  if (!data.runs.length) return "This page has no training run.";
  const { runs } = data;
  place.append(findings(runs) || "", runsTable(runs), rewardsTable(runs), configuration(runs));
  const steps = [5, 10, 20, 50].map((count) => [`${count}`, `mean of ${count} steps`]);
  place.append(h("div", { class: "fields" }, field("Smoothing", "smooth", [["", "none"], ...steps]),
    field("Vertical axis", "axis", [["", "linear"], ["log", "logarithmic"]])));
  const bands = "Bands: the range over seeds, or one standard error of a single run. Thin lines: without smoothing. " +
    "Drag to zoom, double-click to reset.";
  const clicks = data.rows.length ? " Click a step to see its answers." : "";
  place.append(h("p", {}, bands + clicks));
  const toStep = (at) => data.rows.length && go({ view: "answers", step: nearest(recordedSteps(), at) });
  const grid = place.appendChild(h("div", { class: "grid" }));
  for (const spec of data.charts) {
    const series = S.smooth && !spec.stacked ? spec.series.map((s) => smoothed(s, +S.smooth)) : spec.series;
    chart(grid, { ...spec, series, toStep, log: S.axis === "log" });
  }
}

function densityControls() {
  const run = data.runs[+(S.run || 0)], names = Object.keys(run?.fits ?? {});
  const steps = run?.steps.filter((s) => s > 0) ?? [], value = Math.max(0, steps.indexOf(+S.step));
  const slide = h("input", { type: "range", name: "step", max: steps.length - 1, value,
    oninput: () => go({ step: steps[slide.value] }, true) });
  const tick = () => (slide.isConnected && +slide.value < +slide.max ? slide.oninput(slide.value++) : play.onclick());
  const play = button("▶ Play", () => {
    playing = clearInterval(playing) ?? (playing ? null : setInterval(tick, 150));
    play.ariaPressed = !!playing;
  }, { "aria-pressed": "false" });
  return [runField("Run", "run"), names.length > 1 && field("Reward", "fit", names.map((n) => [n, n])), play,
    h("label", { class: "wide" }, "Step", slide)];
}
function densityOfStep(place) {
  const run = +(S.run || 0), facts = data.runs[run];
  if (!facts) return "This page has no training run.";
  const name = S.fit || Object.keys(facts.fits)[0], fits = facts.fits[name] ?? {};
  const step = +(S.step || facts.steps.find((s) => s > 0)), fit = fits[step], at = nearest(recordedSteps(run), step);
  const m = facts.config.samples_per_question, x = [...Array(199).keys()].map((i) => (i + 1) / 200);
  const ps = groupsWhere((r) => r.run === run && r.step === at && !r.watched).map((g) => accuracy(g, name));
  const share = (k) => ps.filter((p) => Math.round(p * m) === k).length / ps.length;
  const bars = ps.length ? [...Array(m + 1).keys()].map((k) => [k / m, m * share(k), 1 / m]) : [];
  const grid = place.appendChild(h("div", { class: "grid two" })), both = { x, height: 320, xRange: [-0.04, 1.04] };
  const line = (label, style, of, from = 0) =>
    ({ label, style, y: x.map((p) => (p >= from && p <= 1 - from ? of(p) : null)) });
  const named = (text, { alpha, beta }) => `${text}: Beta(${number(alpha)}, ${number(beta)})`;
  const divisor = fit ? [line(named("BNPO's divisor", fit), 0, (p) => density(p, fit))] : [];
  const fitted = fit?.fitted ? [line(named("fit", fit.fitted), 1, (p) => density(p, fit.fitted))] : [];
  // A fit may rise without bound at 0 and 1, where it is cut off.
  const heights = [...bars.map((bar) => bar[1]), ...(divisor[0]?.y ?? []), ...(fitted[0]?.y.slice(10, -10) ?? [])];
  chart(grid, { ...both, metric: "density", bars, title: "Density of the accuracies p",
    caption: ps.length ? `bars: density of the accuracies of ${ps.length} questions, step ${at}` : "no recorded answers",
    series: [...divisor, ...fitted], range: [0, 1.1 * Math.max(2.5, ...heights)] });
  chart(grid, { ...both, metric: "weight", title: "Weight of a question", range: [0, 4],
    caption: "factor of its advantages R − p, which are 0 if all rewards are equal",
    series: [...(fit ? [line("BNPO: 1 / f", 0, (p) => weight(p, fit), 1 / m)] : []),
      line("REINFORCE: 1", 2, () => 1, 1 / m),
      line("GRPO: 1 / σ", 1, (p) => Math.sqrt((m - 1) / m / (p * (1 - p))), 1 / m)] });
  if (!fit) return `Step ${step}: no density. Rewards need a range, as --reward-range gives it.`;
  const equal = fit.sharedP == null ? "" : "; all questions have the same weight";
  return `Step ${step}: α ${number(fit.alpha)}, β ${number(fit.beta)}${equal}. ${aboutFit(fit)} BNPO divides the ` +
    "advantages by another density, Beta(α, β) with α = 1 + a/3 and β = 1 + b/3. It is not meant to follow the bars.";
}

function aboutFit({ fitted, mean: center, variance, sharedP }) {
  if (!fitted) return "No Beta distribution fits these accuracies, so a = b = 0.";
  const named = `The fit Beta(a, b) = Beta(${number(fitted.alpha)}, ${number(fitted.beta)})`;
  if (sharedP != null) return `${named} is the narrowest that a fit may be (a + b = 100).`;
  return `${named} has the mean ${number(center)} and the variance ${number(variance)} of the accuracies p (bars).`;
}

const batchesOf = (run) => data.batches.filter((batch) => batch.run === run).sort((a, b) => a.step - b.step);
const estimatorsControls = () => [runField("Run", "run"),
  field("Step", "step", batchesOf(+(S.run || 0)).map(({ step }) => [`${step}`, step]))];
function estimators(place) {
  const batches = batchesOf(+(S.run || 0)), at = nearest(batches.map(({ step }) => step), +S.step || 0);
  const batch = batches.find(({ step }) => step === at), run = data.runs[+(S.run || 0)];
  if (!batch) return "This run has no whole recorded batch (--rollouts-every).";
  const rows = data.rows.filter((row) => row.run === batch.run && row.step === at && !row.watched);
  const names = Object.keys(batch.advantages), own = rows.map((row) => row.advantage);
  const cosines = names.map((name) => number(cosine(batch.advantages[name], own)));
  // Answers with the same rewards to one question have the same advantage, and share a line of the table.
  const groupOf = (i) => Math.floor(i / run.config.samples_per_question);
  const kinds = [...Map.groupBy(rows.keys(), (i) => `${groupOf(i)} ${rows[i].rewards}`).values()];
  kinds.sort(([i], [j]) => groupOf(i) - groupOf(j) || rows[i].reward - rows[j].reward);
  const lines = kinds.map((answers) => {
    const i = answers[0], id = idOf(rows[i]), rewards = rows[i].rewards.map((x) => number(x)).join(", ");
    return [link({ view: "questions", question: id, step: at, across: "" }, id), rewards, answers.length,
      ...names.map((name) => number(batch.advantages[name][i]))];
  });
  const heads = ["question", `reward: ${run.rewards.join(", ")}`, "answers", ...names];
  place.append(table("Advantages", heads, [["cosine", "", "", ...cosines], ...lines]));
  return `Step ${at}: the advantages that other estimators would have given to the same answers, and their cosines ` +
    `with those of this run (${run.config.algo}).`;
}

function answersControls() {
  const search = h("input", { type: "search", name: "q", placeholder: "questions and answers", value: S.q,
    oninput: () => go({ q: search.value }, true) });
  return [h("label", { class: "wide" }, "Search", search), runField("Run", "run", "all"),
    field("Step", "step", [["", "all"], ...recordedSteps().sort((a, b) => a - b).map((s) => [s, s])]),
    field("Verdict", "reward", [["", "any"], [1, "right"], [0, "wrong"], ["between", "between"]]),
    field("Filter", "only", [["", "all"], ...FLAGS.map((flag) => [flag, flag]), ["equal", "groups with equal rewards"],
      ["watched", "watched questions"], ["tokens", "with token data"]]),
    field("Show", "list", [["", "questions, mixed first"], ["single", "single answers"]])];
}
async function chosenRows() {
  const only = { equal: (r) => !isMixed(data.groups.get(r.group)),
    watched: (r) => r.watched, tokens: (r) => r.gap != null }[S.only] ?? ((r) => !S.only || r.flags.includes(S.only));
  const value = (r) => !S.reward || (S.reward === "between" ? r.right % 1 > 0 : r.right === +S.reward);
  const is = (name) => (r) => !S[name] || r[name] === +S[name];
  let rows = data.rows.filter((r) => is("step")(r) && is("run")(r) && value(r) && only(r));
  if (S.q) {
    const has = (text) => text.toLowerCase().includes(S.q.toLowerCase());
    const asks = data.questions.map((question) => has(question.prompt));
    const hits = await Promise.all(rows.map(async (r) => asks[r.question] || has((await textOf(r))[0])));
    rows = rows.filter((_, i) => hits[i]);
  }
  const [, sign, key] = S.sort?.match(/^(-?)(\w+)$/) ?? [];
  const known = (r) => (r[key] == null ? -Infinity : sign ? -r[key] : r[key]); // rows without a value come last
  return key ? rows.sort((a, b) => known(b) - known(a) || 0) : rows;
}
async function answers(place) {
  const rows = await chosenRows(), many = data.runs.length > 1;
  const groups = [...new Set(rows.map((r) => r.group))], mixed = groups.filter((key) => isMixed(data.groups.get(key)));
  const count = `${rows.length} of ${data.rows.length} answers`;
  current = groups;
  if (S.list !== "single") {
    // First those with right and wrong answers, then those whose other rewards differ
    const isMixedKey = new Set(mixed), hasBoth = (key) => new Set(data.groups.get(key).map((r) => r.right)).size > 1;
    const rank = new Map(groups.map((key) => [key, isMixedKey.has(key) ? 1 + hasBoth(key) : 0]));
    current = groups.sort((a, b) => rank.get(b) - rank.get(a));
    const shown = current.slice(0, GROUPS * limit / 100).map((key) => groupCard(data.groups.get(key)));
    place.append(h("div", { class: "grid" }, await Promise.all(shown)), more(current, GROUPS * limit / 100));
    return `${count}. Groups: ${groups.length}, of which ${mixed.length} mixed. These come first: their rewards differ.`;
  }
  const sorted = (text, key = text) => button(text + ({ [key]: " ▼", [`-${key}`]: " ▲" }[S.sort] ?? ""),
    () => go({ sort: { [key]: `-${key}`, [`-${key}`]: "" }[S.sort] ?? key }), { class: "quiet", id: `sort-${key}` });
  const heads = ["question", many && "run", "step", sorted("reward"), sorted("advantage"), sorted("length", "tokens"),
    sorted("gap"), "flags", "answer", "last characters"];
  const lines = rows.slice(0, limit).map(async (r) => {
    const [text, final] = await textOf(r), change = { run: r.run, step: r.step, question: idOf(r), answer: r.sample };
    return [link({ view: "questions", across: "", ...change }, idOf(r)), many && data.runs[r.run].name,
      `${r.step}${r.watched ? " watched" : ""}`, mark(r.right) + number(r.reward), number(r.advantage), r.tokens,
      number(r.gap, 2), r.flags.join(", "), final == null ? "–" : formula(final),
      h("span", { class: "line" }, text.trimEnd().slice(-64))];
  });
  place.append(table("Answers", heads, await Promise.all(lines)), more(rows));
  return count;
}
const GROUPS = 40; // questions that are shown at first
async function groupCard(group) {
  const [row] = group, { prompt, reference } = data.questions[row.question], text = userText(prompt).trim();
  const change = { view: "questions", across: "", run: row.run, step: row.step, question: idOf(row), answer: "" };
  const shown = text.length > 300 ? `${text.slice(0, 300)} …` : text;
  const run = data.runs.length > 1 && data.runs[row.run].name;
  const where = [stepOf(row), run, idOf(row), shares(group)].filter(Boolean).join(" · ");
  const kinds = (await kindsOf(group)).map((kind) => h("li", { class: look(kind.right) }, kindText(kind)));
  const rest = kinds.splice(6);
  return h("article", { class: "card group" }, h("h2", {}, link(change, prose(shown))),
    h("p", {}, "Reference: ", formula(reference)), h("ul", {}, kinds),
    rest.length > 0 && h("p", {}, `and ${rest.length} more`), h("p", {}, where));
}
// The accuracy as trained, and the share of right answers, which is another number if there are several rewards.
const shares = (group) => [`p = ${number(accuracy(group))}`,
  data.runs[group[0].run].rewards.length > 1 && `${number(rightShare(group))} right`].filter(Boolean).join(", ");
const stepOf = ({ step, watched }) => (watched ? `After step ${step}, watched` : `Step ${step}`);

const age = ([row]) => row.step - !row.watched; // number of updates before the policy gave these answers
function accuracies(place, question, groups, runs, about) {
  const x = [...new Set(groups.map(age))].sort((a, b) => a - b);
  const p = (run, at) => groups.filter((g) => g[0].run === run && age(g) === at).map(rightShare)[0];
  const toStep = (at) => go({ view: "questions", question, across: S.question ? S.across : "all", answer: "",
    step: groups.find((group) => age(group) === at)[0].step });
  const series = runs.map((run) => ({ label: data.runs[run].name, style: run, y: x.map((at) => p(run, at) ?? null) }));
  if (x.length > 1 || !S.question)
    chart(place, { metric: "p", x, height: 160, range: [-0.05, 1.05], series, toStep, ...about });
}
function watchedQuestions(place) {
  const grid = place.appendChild(h("div", { class: "grid" }));
  const ids = [...new Set(data.rows.flatMap((row) => (row.watched ? idOf(row) : [])))];
  for (const id of ids) {
    const groups = groupsWhere((row) => idOf(row) === id);
    const text = userText(data.questions[groups[0][0].question].prompt);
    accuracies(grid, id, groups, [...data.runs.keys()], { title: id, caption: text.slice(0, 80) });
  }
  return ids.length ? "Share of right answers by number of policy updates. Click a point to see its answers."
    : "These runs have no watched questions (--watch-questions). Choose a question under Answers.";
}
const questionControls = () => !S.question ? [] : [
  field("Show", "across", [["", "one step"], ["all", "across steps"]]),
  runField("Run", "run"), runField("Compare with", "with", "–"),
  field("Text", "text", [["", "typeset"], ["source", "source"], ["logprobs", "tokens: log-probability"],
    ["gap", "tokens: sampler-learner gap"]]), button("◀ Previous", () => next(-1)), button("Next ▶", () => next(1))];
async function question(place) {
  if (!S.question) return watchedQuestions(place);
  const runs = [...new Set([+(S.run || 0), +(S.with || S.run || 0)])];
  const groups = groupsWhere((row) => idOf(row) === S.question && runs.includes(row.run));
  if (!groups.length) return "No recorded answers to this question.";
  const { prompt, reference } = data.questions[groups[0][0].question];
  place.append(h("div", { class: "asked" }, prose(userText(prompt))), h("p", {}, "Reference: ", formula(reference)),
    h("details", {}, h("summary", {}, "Full prompt"), h("pre", {}, prompt)));
  accuracies(place, S.question, groups, runs, { title: "Share of right answers",
    caption: `mean of ${data.runs[runs[0]].rewards[data.runs[runs[0]].right]}, by number of policy updates` });
  for (const run of runs) {
    const own = groups.filter(([row]) => row.run === run), at = nearest(own.map(([row]) => row.step), +S.step || 0);
    const strip = { class: "strip", tabindex: 0, role: "region", "aria-label": data.runs[run].name };
    const row = h("div", S.across ? strip : {});
    place.append(runs.length > 1 && own.length ? h("h2", {}, data.runs[run].name) : "", row);
    for (const group of own)
      if (S.across || group[0].step === at) row.append(await cards(group, group[0].step === at));
  }
  return /logprobs|gap/.test(S.text) ? `Tokens: blue below 0, orange above 0, full colour at ${number(fullColour())}.`
    : `Groups of answers: ${groups.length}`;
}
const fullColour = () => (S.text === "gap" ? 10 * mean(data.rows.flatMap((row) => row.gap ?? [])) : -4);
async function cards(group, chosen) {
  // A watched group after step s has the policy, and so the fit, of step s + 1.
  const [{ run, step, watched }] = group, at = step + watched;
  const { config, fits: all } = data.runs[run], divisors = config.algo === "bnpo" ? all : {};
  const fits = Object.entries(divisors).map(([name, steps]) => [name, steps[at]]).filter(([, fit]) => fit);
  const fitTexts = fits.map(([name, fit]) => [name, `divisor Beta(${number(fit.alpha)}, ${number(fit.beta)}),`,
    `weight ${number(weight(accuracy(group, name), fit))}`].join(" "));
  const isFocus = (r) => chosen && S.answer !== "" && S.answer != null && +S.answer === r.sample;
  return h("section", { class: chosen ? "group chosen" : "group" }, h("h2", {}, `${stepOf(group[0])}: ${shares(group)}`),
    h("p", {}, fitTexts.join("; ")),
    h("div", { class: "kinds" }, (await kindsOf(group)).map((kind) => kindSection(kind, isFocus))));
}
// The answers of one kind: one of them, and the others on demand. Answers of the same text share a card.
function kindSection(kind, isFocus) {
  const lookOf = ([row, text]) => JSON.stringify([text, row.rewards, row.advantage, row.flags]);
  const texts = [...Map.groupBy(kind.alike, lookOf).values()];
  const [first, ...rest] = texts.map((alike) => answerCard(alike, isFocus));
  const left = kind.alike.length - texts[0].length, open = rest.some((card) => card.classList.contains("focus"));
  return h("section", {}, h("h3", { class: look(kind.right) }, kindText(kind)), first,
    rest.length > 0 && h("details", { open: open && "" }, h("summary", {}, `${left} more with this answer`), rest));
}
function answerCard(alike, isFocus) {
  const [[r, text, final, tokenData]] = alike, values = tokenData?.[S.text], { rewards } = data.runs[r.run];
  const body = values ? tokens(tokenData.texts, values, Math.abs(fullColour())) : S.text ? text : undefined;
  const each = rewards.length > 1 && rewards.map((name, k) => `${name} ${number(r.rewards[k])}`).join(", ");
  const head = [mark(r.right) + number(r.reward), each, r.advantage != null && `advantage ${number(r.advantage)}`,
    `${r.tokens} tokens`, alike.length > 1 && `same text × ${alike.length}`, r.flags.join(", ")];
  const focus = alike.some(([row]) => isFocus(row)) ? "focus" : "";
  return card({ head: head.filter(Boolean).join(" · "), text, final, body, look: `${look(r.right)} ${focus}` });
}
function next(by) {
  const list = (current.length ? current : [...data.groups.keys()]).map((key) => data.groups.get(key)[0]);
  const at = list.findIndex((r) => r.step === +S.step && r.run === +(S.run || 0) && idOf(r) === S.question);
  const row = list[Math.max(0, Math.min(list.length - 1, at + by))];
  if (row) go({ question: idOf(row), step: row.step, run: row.run, answer: "" });
}

function evaluationControls() {
  const names = data.evals.map((e, i) => [`${i}`, e.name]);
  return names.length > 1 && [field("Base", "a", names), field("Compare with", "b", names, `${names.length - 1}`),
    field("Problems", "changed", [["", "changed"], ["gained", "gained"], ["lost", "lost"],
      ["all", "all"]])];
}
function paired(a, b) {
  const base = new Map(a.problems.map(([set, id, right], j) => [`${set} ${id}`, [j, mean(right)]]));
  return b.problems.flatMap(([set, id, right], i) => {
    const key = `${set} ${id}`, [question, reference, topic, level] = data.problems[key] ?? [];
    if (!base.has(key)) return [];
    const [j, from] = base.get(key), to = mean(right);
    const parts = [set, topic, level && `level ${level}`].filter(Boolean);
    return [{ id, key, question, reference, parts, i, j, from, to, change: to - from }];
  });
}
async function openProblem(place, { id, question, reference, i, j }, a, b) {
  const side = async (e, at) => {
    const right = e.problems[at][2], texts = e.chunk == null ? [] : (await unpack(`chunk${e.chunk}`))[at];
    return h("section", { class: "side" }, h("h2", {}, e.name),
      h("p", {}, `${right.filter(Boolean).length} of ${right.length} correct, ${texts.length} shown`),
      texts.map(([text, final], k) => card({ head: verdict(right[k]), text, final, look: look(right[k]) })));
  };
  place.append(h("h2", {}, id), h("div", { class: "asked" }, prose(question ?? "")),
    h("p", {}, "Reference: ", formula(reference ?? "–")),
    h("div", { class: "grid two" }, await side(a, j), a !== b && (await side(b, i))));
}
async function evaluations(place) {
  if (!data.evals.length) return "This page has no evaluations. Train with --eval-every, or add folders of eval.py.";
  const [a, b] = [data.evals[+(S.a || 0)], data.evals[+(S.b || data.evals.length - 1)]], pairs = paired(a, b);
  const parts = [...new Set(pairs.flatMap((pair) => pair.parts))].sort();
  const scored = (values) => `${percent(mean(values))} ± ${percent(standardError(values) || NaN)}`; // 0 is no estimate
  // One evaluation has no second column, and nothing to compare.
  const two = (...columns) => (a === b ? [] : columns);
  const columns = [`${a.name}, %`, ...two(`${b.name}, %`, "difference", "gained", "lost")];
  place.append(table("Scores", ["subset", "problems", ...columns],
    parts.map((part) => [part, pairs.filter((pair) => pair.parts.includes(part))]).map(([part, of]) => [part, of.length,
      scored(of.map((p) => p.from)), ...two(scored(of.map((p) => p.to)), scored(of.map((p) => p.change)),
        of.filter((p) => p.change > 0).length, of.filter((p) => p.change < 0).length)])));
  place.append(evaluationSettings([a, ...two(b)]));
  for (const pair of pairs) if (pair.key === S.problem) await openProblem(place, pair, a, b);
  const wanted = { gained: ({ change }) => change > 0, lost: ({ change }) => change < 0, all: () => true };
  const rows = pairs.filter(a === b ? wanted.all : wanted[S.changed] ?? (({ change }) => change))
    .sort((p, q) => Math.abs(q.change) - Math.abs(p.change));
  const heads = ["problem", ...(a === b ? ["correct, %"] : ["base, %", "compared, %", "change"]), "question"];
  const changeText = (change) => (change > 0 ? "▲ gained" : change < 0 ? "▼ lost" : "");
  place.append(table("Problems", heads, rows.slice(0, limit).map((p) => [
    link({ problem: p.key }, p.id), percent(p.from), ...two(percent(p.to), changeText(p.change)),
    h("span", { class: "line" }, p.question ?? "")])), more(rows));
  const errors = "± is the standard error over problems";
  return a === b ? `${pairs.length} problems. ${errors}.`
    : `${pairs.length} problems in both evaluations. ${errors}, paired for differences.`;
}

const hasRuns = () => data.runs.length > 0, hasAnswers = () => data.rows.length > 0;
const VIEWS = {
  curves: { title: () => data.runs.map((run) => run.name).join(", ") || "No runs", draw: curves, isShown: hasRuns },
  density: { title: () => "Weight of a question by its accuracy p", controls: densityControls, draw: densityOfStep,
    isShown: hasRuns },
  estimators: { title: () => "The same batch by every estimator", controls: estimatorsControls, draw: estimators,
    isShown: hasRuns },
  answers: { title: () => "Answers", controls: answersControls, draw: answers, isShown: hasAnswers },
  questions: { title: () => (S.question ? `Question ${S.question}` : "Watched questions"),
    controls: questionControls, draw: question, isShown: hasAnswers },
  evaluations: { title: () => "Evaluations by problem", controls: evaluationControls, draw: evaluations,
    isShown: () => data.evals.length > 0 },
};
