// State of the page: S holds what is shown, and the address repeats it, so that every view has a link.

const $ = (id) => document.getElementById(id);
let data, opened = {}, S = {}, view, shown, seen, limit, current = [];
let playing, writing, drawing = 0, width = innerWidth;

function unpack(id) {
  const bytes = () => Uint8Array.from(atob($(id).textContent), (c) => c.charCodeAt(0));
  const stream = () => new Blob([bytes()]).stream().pipeThrough(new DecompressionStream("gzip"));
  return opened[id] ??= new Response(stream()).json();
}
const textOf = async (row) => (await unpack(`chunk${row.chunk}`))[row.place];

const address = (state) => "#" + new URLSearchParams(Object.entries(state).filter(([, v]) => v || v === 0));
const link = (change, text) => h("a", { href: address({ ...S, ...change }) }, text);
function go(change, replace) {
  S = { ...S, ...change };
  clearTimeout(writing);
  // Browsers limit how often the address may change, and a slider changes it at every move.
  if (replace) writing = setTimeout(() => history.replaceState(null, "", address(S)), 200);
  else history.pushState(null, "", address(S));
  render();
}
function field(label, name, options, fallback = options[0]?.[0]) {
  const choose = () => go({ [name]: select.value === `${fallback}` ? "" : select.value });
  const select = h("select", { name, onchange: choose }, options.map(([value, text]) => h("option", { value }, text)));
  select.value = S[name] || fallback;
  select.id = `field-${name}`;
  return h("label", {}, label, select);
}
const runField = (label, name, ...none) => data.runs.length > 1 &&
  field(label, name, [...none.map((text) => ["", text]), ...data.runs.map((run, i) => [`${i}`, run.name])]);
const more = (rows, most = limit) => rows.length > most ? button("Show more", () => { limit *= 4; render(); }) : "";

// Draws the view that S asks for next to the old one, and only then removes the old one: the page does not flicker.
async function render() {
  const turn = ++drawing, old = [...$("view").children], figures = [...$("view").querySelectorAll("figure")];
  const fallback = S.question ? "questions" : S.step ? "answers" : data.runs.length ? "curves" : "evaluations";
  const name = VIEWS[S.view] ? S.view : fallback, shape = [name, S.run, !S.question].join(" "), form = $("controls");
  const subject = [name, S.question, S.problem].join(" "), { id } = document.activeElement;
  if (shape !== shown) { // otherwise keep the controls: somebody may be typing or dragging
    [view, shown, limit] = [name, shape, 100];
    const focused = document.activeElement.name;
    form.replaceChildren(...(VIEWS[view].controls?.() || []).filter(Boolean));
    form.elements[focused]?.focus();
    for (const a of document.querySelectorAll("nav a")) a.toggleAttribute("aria-current", a.hash === `#view=${view}`);
  }
  $("view").ariaBusy = true;
  $("title").textContent = VIEWS[view].title();
  const place = $("view").appendChild(h("div")), message = await VIEWS[view].draw(place);
  if (turn !== drawing) return place.remove(); // a later call has started meanwhile
  for (const element of [...old, ...figures]) element.plot?.destroy() ?? element.remove();
  $(id)?.focus();
  const notes = data.leftOut.map((note) => `Not shown: ${note}.`);
  $("message").textContent = [message ?? "", ...notes].join(" ").trim();
  for (const chosen of place.querySelectorAll(".strip .chosen")) chosen.parentElement.scrollLeft = chosen.offsetLeft;
  if (subject !== seen) scrollTo(0, seen == null ? history.state?.top ?? 0 : 0); // the place before a reload
  seen = subject;
  $("view").ariaBusy = false;
}

document.onkeydown = (event) => {
  if (/INPUT|SELECT/.test(event.target.tagName) || event.ctrlKey || event.metaKey || event.altKey) return;
  const by = { n: 1, p: -1 }[event.key], links = [...document.querySelectorAll("#view th a, #view h2 a")];
  if (event.key === "/") {
    if (view !== "answers") go({ view: "answers" });
    $("controls").q.focus(event.preventDefault());
  } else if (by && view === "questions") next(by);
  else if (by) links[Math.max(0, Math.min(links.length - 1, links.indexOf(document.activeElement) + by))]?.focus();
};
matchMedia("(prefers-color-scheme: dark)").onchange = () => render();
onresize = () => { if (innerWidth !== width) render(width = innerWidth); };
onpopstate = () => { S = Object.fromEntries(new URLSearchParams(location.hash.slice(1))); shown = null; render(); };
unpack("data").then((content) => {
  data = content;
  data.rows.forEach(grade);
  for (const row of data.rows) row.group = [row.run, row.step, row.watched, row.question].join(" ");
  data.groups = Map.groupBy(data.rows, (row) => row.group);
  for (const group of data.groups.values()) group.forEach((row, sample) => { row.sample = sample; });
  data.runs.forEach(complete);
  data.charts = charts(data.runs);
  reloadWhileGoing();
  for (const name of Object.keys(VIEWS).filter((view) => VIEWS[view].isShown()))
    document.querySelector("nav").append(h("a", { href: `#view=${name}` }, name[0].toUpperCase() + name.slice(1)));
  onpopstate();
});

// A run that is going on rewrites this file. It is read again, unless somebody has used the page in the last seconds.
const RELOAD_SECONDS = 30, ENDED_SECONDS = 3600; // a page so old is that of a killed run
function reloadWhileGoing() {
  const isGoing = data.runs.some((run) => run.going) && Date.now() / 1000 - data.madeAt < ENDED_SECONDS;
  const again = isGoing ? `; reloads every ${RELOAD_SECONDS} s while the run lasts` : "";
  $("made").textContent = `written ${data.made}${again}`;
  if (!isGoing) return;
  let used = Date.now();
  for (const kind of ["pointerdown", "pointermove", "keydown", "wheel", "touchmove"])
    addEventListener(kind, () => { used = Date.now(); }, { passive: true });
  setInterval(() => {
    if (Date.now() - used < 1000 * RELOAD_SECONDS) return;
    history.replaceState({ top: scrollY }, "");
    location.reload();
  }, 1000 * RELOAD_SECONDS);
}
