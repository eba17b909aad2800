// The charts of metrics and the fitted densities, made from the lines of metrics.jsonl of every run.

const CV_STEPS = 20; // over which the gradient norm's coefficient of variation is computed
const DENSITY = "of the density Beta(α, β) that BNPO divides advantages by";
// By metric: title, caption, and the metric with the standard error, if there is one. /cv asks for the variation.
// The charts of rewards are in `rewardCharts`.
const CHARTS = {
  "eval/average/pass1": ["pass@1", "mean over the data sets ± standard error", "eval/average/se"],
  "grad_norm": ["Gradient norm", "before clipping"],
  "grad_norm/cv": ["Variation of the gradient norm", `standard deviation / mean over ${CV_STEPS} steps`],
  "beta/E": ["Accuracy of the questions", "mean E[p] over the batch"],
  "beta/V": ["Spread of the accuracies", "variance Var[p] over the batch"],
  "beta/alpha": ["Density: α", DENSITY],
  "beta/beta": ["Density: β", DENSITY],
  "answers/mean_tokens": ["Answer length", "mean tokens per answer"],
  "answers/truncated": ["Cut off", "share of answers that reach the length limit"],
  "answers/left_out": ["Left out", "share of answers with a reward that could not be computed"],
  "groups/all_equal": ["Questions without a signal", "share of those whose m answers are equal in the reward of --signal"],
  "advantage/energy_all_wrong": ["Energy of all-wrong groups", "share of the sum of squared advantages"],
  "sampler_learner_gap_mean": ["Sampler-learner gap", "mean |Δ log-probability| per token"],
  "entropy": ["Entropy", "nats per token, estimated from samples"],
  "lr": ["Learning rate", "of AdamW, in the step"],
  "tokens/per_second": ["Tokens per second", "sampled tokens / seconds of the whole step"],
};
const PHASES = ["generate", "reward", "gather", "update", "sync", "watch", "evaluate"];

const namesIn = (lines) => [...new Set(lines.flatMap(Object.keys))].sort();

// Adds what the views need to a run: its steps, the average of its evaluations, and its fitted densities.
function complete(run) {
  run.steps = run.lines.map((line) => line.step);
  for (const line of run.lines) {
    const errors = Object.keys(line).filter((name) => /^eval\/.*\/se$/.test(name)).map((name) => line[name]);
    if (!errors.length) continue; // this step was not evaluated
    line["eval/average/pass1"] = line["eval/average"];
    line["eval/average/se"] = errors.includes(null) ? null : Math.hypot(...errors) / errors.length;
  }
  run.fits = fits(run.lines);
}

// Stirling's series, which from 16 on is exact to 12 digits.
const logGamma = (z) => (z < 16 ? logGamma(z + 1) - Math.log(z) : (z - 0.5) * Math.log(z) - z +
  0.5 * Math.log(2 * Math.PI) + 1 / (12 * z) - 1 / (360 * z ** 3) + 1 / (1260 * z ** 5));
const logBeta = (alpha, beta) => logGamma(alpha) + logGamma(beta) - logGamma(alpha + beta);

// The fitted density of every step, by the reward it was fitted to ("" for all rewards) and by step.
function fits(lines) {
  const densities = {};
  for (const metric of namesIn(lines)) {
    const [, prefix, reward = ""] = metric.match(/^(beta\/(?:(.+)\/)?)alpha$/) ?? [];
    if (prefix == null) continue;
    densities[reward] = {};
    for (const line of lines) {
      const value = (name) => line[prefix + name], [alpha, beta, a, b] = ["alpha", "beta", "a", "b"].map(value);
      if (alpha == null) continue;
      // Where the questions are taken to be equally hard, all of them get the weight of one accuracy p.
      // At its other edges a fit has a = b = 0: this one stopped at the largest concentration.
      const sharedP = value("edge") === 1 && a > 0 ? value("E") : null;
      // What was fitted to the accuracies. Without it, their spread is too large for a density.
      const fitted = a > 0 && b > 0 ? { alpha: a, beta: b, logB: logBeta(a, b) } : null;
      densities[reward][line.step] = { alpha, beta, logB: logBeta(alpha, beta), sharedP, fitted,
        mean: value("E"), variance: value("V") };
    }
  }
  return densities;
}

// All charts that the runs have values for. Runs that differ only in their seeds share a line.
function charts(runs) {
  const steps = [...new Set(runs.flatMap((run) => run.steps))].sort((a, b) => a - b);
  const settings = [...Map.groupBy(runs, (run) => JSON.stringify(run.config)).values()];
  const named = { ...rewardCharts(runs), ...CHARTS, ...moreCharts(namesIn(runs.flatMap((run) => run.lines))) };
  const found = Object.entries(named).map(([metric, [title, caption, errorMetric]]) => {
    const series = settings.map((same, i) => lineOf(same, metric, errorMetric, steps, i));
    return { metric, name: metric.replace(/\/(cv|pass1)$/, ""), title, caption, x: steps,
      series: series.filter(({ y }) => y.some((value) => value != null)) };
  });
  return [...found, lengths(runs, steps)].filter(({ series }) => series.length).concat(runs.map(phases));
}

// The mean of the rewards that is trained, and each reward by itself if there are several.
function rewardCharts(runs) {
  const several = runs.filter((run) => run.rewards.length > 1);
  const sum = ({ rewards, weights }) => rewards.map((name, k) => `${number(weights[k])} × ${name}`).join(" + ");
  const sums = [...new Set(several.map(sum))];
  const isMapped = several.some(({ ranges }) => ranges.some(([low, high]) => low != null && (low || high !== 1)));
  const trained = sums.length ? `weighted mean as trained: ${sums.join("; ")}${isMapped ? ", mapped to [0, 1]" : ""}`
    : "mean of the batch ± standard error";
  const single = several.flatMap(({ rewards }) => rewards)
    .map((name) => [`reward/${name}`, [`Reward: ${name}`, "mean of the batch"]]);
  return { "reward/mean": ["Reward", trained, "reward/se"], ...Object.fromEntries(single) };
}

// Mean lengths of right and of wrong answers.
function lengths(runs, steps) {
  const series = runs.flatMap((run, i) => ["right", "wrong"].map((kind, wrong) => {
    const values = column(run, `answers/mean_tokens/${kind}`), y = steps.map((step) => values.get(step) ?? null);
    return { label: runs.length > 1 ? `${kind}, ${run.name}` : kind, style: 2 * i + wrong, y };
  }));
  return { metric: "lengths", title: "Length of right and wrong answers", x: steps,
    caption: "mean tokens, by the reward of --signal",
    series: series.filter(({ y }) => y.some((value) => value != null)) };
}

// Charts of the data sets, if there are several, and of the densities fitted to single rewards.
function moreCharts(metrics) {
  const datasets = metrics.filter((metric) => metric.endsWith("/pass1") && !CHARTS[metric]).map((metric) => {
    const place = metric.slice(0, -"/pass1".length);
    return [metric, [`pass@1: ${place.replace("eval/", "")}`, "± standard error", `${place}/se`]];
  });
  const densities = metrics.filter((metric) => /^beta\/.+\/(E|V|alpha|beta)$/.test(metric))
    .map((metric) => [metric, [metric.replace("beta/", ""), "of the density fitted to this reward"]]);
  return Object.fromEntries([...(datasets.length > 1 ? datasets : []), ...densities]);
}

// A metric of a run by step, null where it was not logged.
function column({ lines }, metric) {
  const values = lines.map((line) => line[metric.replace(/\/cv$/, "")] ?? null);
  const shown = metric.endsWith("/cv") ? variations(values) : values;
  return new Map(lines.map(({ step }, i) => [step, shown[i]]));
}
const variations = (values) => values.map((_, i) => { // null until there are CV_STEPS values
  const last = values.slice(Math.max(0, i + 1 - CV_STEPS), i + 1);
  if (last.length < CV_STEPS || last.includes(null)) return null;
  return Math.sqrt(CV_STEPS) * standardError(last) / mean(last);
});

// The mean of the last `count` known values. Standard errors do not hold for it, ranges over seeds do.
function smoothed(series, count) {
  const over = (values) => {
    const last = [];
    return values.map((value) => {
      if (value == null) return null;
      if (last.push(value) > count) last.shift();
      return mean(last);
    });
  };
  const { y, low, high, band } = series;
  return { ...series, y: over(y), low: band ? over(low) : null, high: band ? over(high) : null, raw: y };
}

// The mean of runs that differ only in their seeds, in a band from the smallest to the largest value, up to the last
// step that all of them have: a mean of those that are left would show a jump. For a single run the band is one
// standard error on both sides.
function lineOf(same, metric, errorMetric, steps, style) {
  const last = Math.min(...same.filter((run) => run.steps.length).map((run) => run.steps.at(-1)));
  const columns = same.map((run) => column(run, metric)), errors = column(same[0], `${errorMetric}`);
  const points = steps.map((step) => {
    const values = columns.map((column) => column.get(step)).filter((value) => value != null), error = errors.get(step);
    if (!values.length || (same.length > 1 && step > last)) return [null, null, null];
    if (same.length > 1) return [mean(values), Math.min(...values), Math.max(...values)];
    return error == null ? [values[0], null, null] : [values[0], values[0] - error, values[0] + error];
  });
  const [y, low, high] = [0, 1, 2].map((part) => points.map((point) => point[part]));
  const label = same.length > 1 ? `${same[0].name} (${same.length} seeds)` : same[0].name;
  return { label, style, band: same.length > 1, y, low, high };
}

// The seconds of a run by step, its phases stacked.
function phases({ name, steps, lines }) {
  const series = [];
  let top = lines.map(() => 0);
  for (const phase of PHASES) {
    const metric = `seconds/${phase}`, low = top;
    if (!lines.some((line) => metric in line)) continue;
    top = lines.map((line, i) => low[i] + (line[metric] ?? 0));
    series.push({ label: phase, style: series.length, y: top, low, high: top });
  }
  return { metric: "seconds", title: `Seconds: ${name}`, caption: "per step, stacked by phase", x: steps, series,
    stacked: true };
}
