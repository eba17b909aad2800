// What stands above the curves: findings, the runs, their rewards, and their configuration.

// Settings that are always shown. Others are shown if they differ from the preset's.
const MAIN_SETTINGS = ["preset", "model", "train_data", "algo", "rewards", "grader", "questions_per_step",
  "samples_per_question", "max_answer_tokens", "temperature", "lr", "dtype"];
const OWN_FOLDER = ["output_dir", "overwrite", "resume", "config", "allow_changes", "seed"];

// A setting as text. Of a long path, its last two parts; of the hub's cache, the name of the model; of a long text, such
// as a prompt, the beginning.
function say(value) {
  if (value == null || value === "") return "–";
  if (Array.isArray(value)) return value.map(say).join(", ") || "–";
  if (typeof value === "object") return Object.entries(value).map(([key, part]) => `${key} ${say(part)}`).join(", ");
  if (typeof value === "number") return number(value, 12);
  if (value.length > 200 && /\s/.test(value)) return `${value.slice(0, 60).replace(/\s+/g, " ")} …`;
  const hub = `${value}`.replace(/^.*\/models--(.+?)--(.+?)\/snapshots\/.*$/, "$1/$2");
  return hub.replace(/^\/.*\/(?=[^/]+\/[^/]+$)/, "");
}
const same = (values) => new Set(values.map((value) => JSON.stringify(value))).size < 2;
const settingNames = (runs) => [...new Set(runs.flatMap((run) => Object.keys(run.settings)))]
  .filter((name) => !OWN_FOLDER.includes(name));
const differing = (runs) => settingNames(runs).filter((name) => !same(runs.map((run) => run.settings[name])));

function findings(runs) {
  const name = (run) => runs.length > 1 && `${run.name}: `;
  const lines = runs.flatMap((run) => run.findings.map(({ text }) => h("li", {}, name(run), text)));
  return lines.length && h("section", { class: "findings" }, h("h2", {}, "Findings from the answers of the first steps"),
    h("ul", {}, lines));
}

function runsTable(runs) {
  const names = differing(runs).filter((name) => !["algo", "steps"].includes(name));
  // Settings may be the same and what they name may not, such as the content of a data file.
  const named = [...new Set(runs.flatMap((run) => Object.keys(run.config)))];
  // A setting that differs has a column already, so its content says nothing new: data_sha256 belongs to train_data.
  const words = new Set(differing(runs).flatMap((name) => name.split("_")));
  const facts = named.filter((name) => !(name in runs[0].settings) && !words.has(name.split("_")[0]));
  const otherFacts = (run) =>
    facts.filter((name) => !same([run.config[name], runs[0].config[name]])).join(", ") || "–";
  const others = runs.some((run) => otherFacts(run) !== "–") && "differs in";
  const fromTo = (run, metric) => {
    const known = run.lines.map((line) => line[metric]).filter((value) => value != null);
    return known.length > 1 ? `${number(known[0])} → ${number(known.at(-1))}` : number(known[0]);
  };
  const heads = ["run", "algorithm", "seed", "reward", "pass@1", "steps", "status", "s per step", ...names, others];
  const row = (run) => [run.name, say(run.settings.algo), run.seed,
    ...["reward/mean", "eval/average"].map((metric) => fromTo(run, metric)), run.steps.at(-1) ?? 0, run.end,
    fromTo(run, "seconds/total"), ...names.map((name) => say(run.settings[name])), others && otherFacts(run)];
  return table("Runs", heads, runs.map(row));
}

// How a reward developed, by its means over the first and the last fifth of the steps.
function trend(values) {
  if (!values.length) return "no values";
  if (values.every((value) => value === values[0])) return `always ${number(values[0])}: gives no gradient`;
  const part = Math.max(3, Math.floor(values.length / 5));
  if (values.length < 2 * part) return "too few steps to tell";
  const [first, last] = [values.slice(0, part), values.slice(-part)], change = mean(last) - mean(first);
  const noise = Math.hypot(standardError(first), standardError(last));
  return Math.abs(change) <= 2 * noise ? "no clear change" : change > 0 ? "rose" : "fell";
}
function rewardsTable(runs) {
  const rows = runs.flatMap((run) => run.rewards.map((name, k) => {
    const metric = run.rewards.length > 1 ? `reward/${name}` : "reward/mean";
    const values = run.lines.map((line) => line[metric]).filter((value) => value != null);
    const verdict = run.weights[k] ? trend(values) : `${trend(values).replace(/:.*/, "")}; only recorded`;
    const [first, last] = [values[0], values.at(-1)].map((value) => number(value));
    return [name, runs.length > 1 && run.name, number(run.weights[k]), first, last, verdict];
  }));
  return table("Rewards", ["reward", runs.length > 1 && "run", "weight", "first step", "last step", "verdict"], rows);
}

function configuration(runs) {
  const names = settingNames(runs), changed = (name) => runs.some((run) => run.changed.includes(name));
  const equal = names.filter((name) => same(runs.map((run) => run.settings[name])));
  const shown = equal.filter((name) => MAIN_SETTINGS.includes(name) || changed(name));
  const full = (name) => JSON.stringify(runs[0].settings[name]);
  const facts = shown.map((name) => h("div", { title: full(name) }, h("dt", {}, name, changed(name) && " *"),
    h("dd", {}, say(runs[0].settings[name]))));
  const all = table("All settings", ["setting", ...runs.map((run) => run.name)],
    names.map((name) => [`${name}${changed(name) ? " *" : ""}`, ...runs.map((run) => say(run.settings[name]))]));
  return h("section", {}, h("h2", {}, runs.length > 1 ? "Configuration of all runs" : "Configuration"),
    h("dl", { class: "facts" }, facts), h("p", {}, "* differs from the preset."),
    h("details", {}, h("summary", {}, "All settings"), all));
}

// The settings of evaluations, one per column.
function evaluationSettings(evals) {
  const names = [...new Set(evals.flatMap((e) => Object.keys(e.protocol)))];
  return names.length ? table("Settings", ["setting", ...evals.map((e) => e.name)],
    names.map((name) => [name, ...evals.map((e) => say(e.protocol[name]))])) : "";
}
