// The page: its state (conversation, ledger, turn, item), and the parts that depend on it.

const data = JSON.parse(byId("data").textContent);
const texts = [];
const conversations = [];
const now = { conversation: 0, ledger: 0, turn: 0, open: false, item: null, filter: "all", table: false, window: { from: -0.5, to: 0.5 }, tail: TAIL, chosen: false };
let charts = [], side = null, named = 0;
const parts = { tip: el("div", { class: "tip", hidden: true, "aria-hidden": "true" }) };

// Adds the conversations of a patch, which has the form of the embedded data. Returns what has changed.
function apply(patch) {
  const files = new Map(), changed = new Map();
  for (const { file } of patch.conversations ?? []) files.set(file, (files.get(file) ?? 0) + 1);
  for (const [number, entry] of Object.entries(patch.texts ?? {})) texts[number] = entry;
  for (const recorded of patch.conversations ?? []) {
    let conversation = recorded.key === undefined ? undefined : conversations.find(({ key }) => key === recorded.key);
    if (!conversation) conversations.push(conversation = { ...recorded, ...nameOf(recorded, files), ledgers: [] });
    for (const raw of recorded.ledgers) {
      let ledger = conversation.ledgers.find((known) => known.raw.id === raw.id);
      if (!ledger) {
        const twins = conversation.ledgers.filter(({ raw: { name, agent } }) => name === raw.name && agent === raw.agent).length;
        conversation.ledgers.push(ledger = new Ledger(raw, conversation.ledgers.length, twins));
      }
      ledger.add(raw.turns, raw.items);
      changed.set(ledger, new Set([...(changed.get(ledger) ?? []), ...raw.turns.map(({ n }) => n)]));
    }
  }
  return changed;
}

function nameOf(recorded, files) {
  // If a file has only one conversation, the name of the file is more readable than a generated id.
  const alone = recorded.file !== undefined && /^[0-9a-f-]{16,}$/i.test(recorded.id ?? "") && files.get(recorded.file) === 1;
  const agent = recorded.ledgers[0].agent, number = `${agent ? `${agent}, ` : ""}conversation ${++named}`;
  const name = alone ? recorded.file : recorded.id ?? (recorded.file ? (files.get(recorded.file) > 1 ? `${recorded.file}, ${number}` : recorded.file) : number);
  return { name, aside: name === recorded.id ? recorded.file && `in ${recorded.file}` : recorded.id };
}

// The shown conversation; undefined if the page has none. A conversation that was removed stays until the next redraw.
const here = () => now.removed ?? conversations[now.conversation];
const active = () => here().ledgers[now.ledger];

// Theme

const dark = matchMedia("(prefers-color-scheme: dark)");
function theme(wanted) {
  const is = wanted ?? (dark.matches ? "dark" : "light");
  document.documentElement.dataset.theme = is;
  parts.theme.setAttribute("aria-pressed", String(is === "dark"));
}

function header() {
  parts.theme = el("button", { type: "button", class: "button", onclick: () => {
    const to = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    remember("theme", to);
    theme(to);
    drawCharts();
  } }, el("span", { "aria-hidden": "true" }, "◐ "), "Dark");
  parts.table = el("button", { type: "button", class: "button", "aria-pressed": "false", onclick: () => toggleTable() }, el("span", { "aria-hidden": "true" }, "☰ "), "Table");
  parts.search = el("input", {
    type: "search", id: "search", role: "combobox", "aria-label": "Find an item by number, kind or text", "aria-expanded": "false", "aria-controls": "results", "aria-autocomplete": "list",
    placeholder: "Find an item: number, kind or text", autocomplete: "off", spellcheck: "false", oninput: () => find(), onkeydown: searchKey, onfocus: () => find(),
  });
  parts.results = el("div", { id: "results", class: "results", role: "listbox", "aria-label": "Items found", hidden: true });
  parts.note = el("p", { class: "results note", hidden: true });
  parts.state = data.live ? el("p", { class: "live" }) : null;
  parts.counts = el("p", { class: "dim" });
  parts.refusals = el("section", { class: "refusals", "aria-label": "Conversations that cannot be read" });
  refill(byId("top"), el("div", { class: "heading" }, foreign(data.title, "h1"), parts.state, parts.counts),
    el("div", { class: "tools" }, el("div", { class: "finder" }, parts.search, parts.results, parts.note), parts.table, parts.theme));
  byId("top").after(parts.refusals);
  tally();
  showRefusals(data.refusals ?? []);
  theme(remember("theme"));
  dark.addEventListener("change", () => { if (!remember("theme")) { theme(); drawCharts(); } });
}

function tally() {
  const turns = conversations.reduce((sum, conversation) => sum + conversation.ledgers.reduce((all, { turns: some }) => all + some.length, 0), 0);
  refill(parts.counts, `${plural(conversations.length, "conversation")}, ${plural(turns, "assembly", "assemblies")}`);
}

// The conversations of a transcript or log that cannot be read.
function showRefusals(refusals) {
  refill(parts.refusals, refusals.length ? el("details", { class: "problems" }, el("summary", {}, `${plural(refusals.length, "conversation")} cannot be read`),
    el("ul", {}, refusals.map((refusal) => el("li", {}, foreign(refusal))))) : null);
}

// Conversations

function choose(index, byUser = false) {
  Object.assign(now, { conversation: index, removed: null, chosen: byUser });
  Object.assign(now, { ledger: 0, item: null, open: false });
  for (const conversation of conversations) conversation.shown = conversation === here();
  side?.table.draw(true);
  const ledgers = here().ledgers.filter(({ turns }) => turns.length);
  const over = data.live ? null : ledgers.find(({ overflow }) => overflow);
  now.ledger = (over ?? ledgers[0])?.number ?? 0;
  fit();
  now.turn = data.live ? active().last : over?.overflow.n ?? active().nearest(Math.max(now.window.from, Math.min(...ledgers.map(({ first }) => first))));
  reveal();
  conversation();
  point();
  if (side && !side.wide.matches) side.fold.open = false;
  say(`Conversation ${here().name}, ${plural(here().ledgers.length, "variant")}`);
}

const ends = () => {
  const ledgers = here().ledgers.filter(({ turns }) => turns.length);
  return { from: Math.min(0, ...ledgers.map(({ first }) => first)) - 0.5, to: Math.max(...ledgers.map(({ last }) => last)) + 0.5 };
};

function conversation() {
  const { ledgers, name, alike } = here();
  const kinds = kindsOf(ledgers), marks = marksOf(ledgers);
  const first = ledgers[0].raw;
  const problems = problemsOf(ledgers);
  const lost = ledgers.reduce((sum, ledger) => sum + Math.max(0, (ledger.raw.problemCount ?? 0) - (ledger.raw.problems ?? []).length), problems.length);
  parts.charts = el("div", { class: "charts" });
  parts.turn = el("section", { class: "panel turn", "aria-label": "Turn", hidden: true });
  parts.item = el("section", { class: "panel item", "aria-label": "Item", hidden: true });
  parts.slide = el("div", { class: "slide", tabindex: "-1", onscroll: slid }, parts.slideInner = el("div", {}));
  refill(byId("main"),
    el("div", { class: "about" },
      el("h2", {}, foreign(name)),
      el("p", { class: "dim" }, [here().aside ? [foreign(here().aside), ", "] : null, first.agent ? ["agent ", foreign(first.agent)] : null, first.framework ? [" on ", foreign(first.framework)] : null,
        ledgers[0].turns[0]?.model ? [", for ", foreign(ledgers[0].turns[0].model)] : null, alike ? " Shown side by side because all input items have the same kinds and sizes; there is no conversation id." : null]),
      el("div", { class: "legend" },
        parts.kinds = el("ul", { "aria-label": "Kinds" }), parts.marks = el("ul", { "aria-label": "Marks" }),
        parts.zoom = el("div", { class: "zoom", role: "group", "aria-label": "Zoom" },
          el("button", { type: "button", "aria-label": "Zoom out", onclick: () => zoom(2) }, "−"),
          el("button", { type: "button", "aria-label": "Show all turns", onclick: () => { fit(Infinity); moved(); } }, "all"),
          el("button", { type: "button", "aria-label": "Zoom in", onclick: () => zoom(0.5) }, "+")))),
    problems.length ? el("details", { class: "problems" }, el("summary", {}, `${plural(lost, "problem")} in the spans; affected values are marked as unknown`),
      el("ul", {}, problems.map(([ledger, problem]) => el("li", {}, ledgers.length > 1 ? `${ledger.name}: ` : "", foreign(problem))),
        lost > problems.length ? el("li", {}, `and ${count(lost - problems.length)} more`) : null)) : null,
    parts.charts, parts.slide,
    parts.hint = el("p", { class: "hint" }, "Select a turn to see what was in its prompt, what was dropped and why: click a bar, or press ", el("kbd", {}, "Enter"), " in a chart."),
    el("div", { class: "below" }, parts.turn, parts.item), parts.tip);
  drawCharts(kinds, marks);
}

const marksOf = (ledgers) => Object.keys(MARKS).filter((mark) => ledgers.some((ledger) => ledger.totals().marks[mark]));

function problemsOf(ledgers) {
  const ofTurns = (ledger) => ledger.turns.filter(({ problems }) => problems).flatMap(({ problems }) => problems);
  return [...data.problems.map((problem) => [{ name: "unreadable" }, problem]),
    ...ledgers.flatMap((ledger) => [...(ledger.raw.problems ?? []), ...ofTurns(ledger).slice(0, 100)].map((problem) => [ledger, problem]))];
}

function legend(ledgers, kinds, marks) {
  refill(parts.kinds, kinds.map((name) => el("li", {}, kindLabel(name))));
  refill(parts.marks, marks.map((mark) => el("li", {}, el("span", { class: `mark ${mark}`, "aria-hidden": "true" }, MARKS[mark].symbol), " ", MARKS[mark].label)),
    ledgers.some((ledger) => ledger.totals().ceiling) ? el("li", {}, el("span", { class: "dash", "aria-hidden": "true" }), " budget") : null);
}

// One scale for all variants, to compare them, unless a variant would be too flat.
function scales(ledgers) {
  const tops = ledgers.map(({ top }) => top), most = Math.max(...tops);
  return tops.map((top) => ({ most: top * 4 < most ? top : most, own: top * 4 < most }));
}

function drawCharts(kinds, marks) {
  if (!here()) return;
  const { ledgers } = here();
  kinds ??= kindsOf(ledgers);
  marks ??= marksOf(ledgers);
  legend(ledgers, kinds, marks);
  parts.tip.hidden = true;
  if (now.table) {
    charts = [];
    parts.tables = ledgers.map(turnTable);
    parts.heads = ledgers.map(chartHead);
    refill(parts.charts, ledgers.map((ledger, index) => el("section", { class: "panel" }, parts.heads[index], parts.tables[index].box)));
    layout();
    return;
  }
  const height = ledgers.length === 1 ? 250 : ledgers.length === 2 ? 190 : 150;
  const scale = scales(ledgers);
  charts = ledgers.map((ledger, index) => new Chart(ledger, { height, kinds, marks, ...scale[index], window: now.window, on: chartEvents }));
  const seen = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) if (isIntersecting) {
      seen.unobserve(target);
      charts.find(({ box }) => box === target)?.draw();
    }
  }, { rootMargin: "200px" });
  parts.heads = ledgers.map(chartHead);
  refill(parts.charts, charts.map((chart, index) => {
    chart.strips = el("div", { class: "strips" });
    return el("section", { class: "panel" }, parts.heads[index], chart.own ? el("p", { class: "note" }, "This variant has its own scale.") : null, chart.box, chart.strips);
  }));
  for (const chart of charts) seen.observe(chart.box);
  layout();
  point();
  strips();
}

function chartHead(ledger) {
  const sums = ledger.totals();
  const said = (name, limits) => (limits.size === 0 ? [] : `${name} ${[...new Set([Math.min(...limits), Math.max(...limits)])].map(count).join(" to ")}`);
  const budgets = [said("budget", sums.budgets), said("message limit", sums.limits)].flat();
  const facts = [plural(ledger.turns.length, "turn"), ...(budgets.length ? budgets : ["no budget"]), `most ${count(sums.peak)} tokens`,
    `${plural(sums.left, "item")} dropped`, plural(sums.breaks, "prefix break")];
  if (sums.marks.overflow) facts.push(plural(sums.marks.overflow, "overflow"));
  const missing = ledger.last - ledger.first + 1 - ledger.turns.length + ledger.first;
  if (missing > 0) facts.push(`${plural(missing, "turn")} not recorded`);
  return el("div", { class: "chart-head" }, el("h3", {}, foreign(ledger.name)), el("p", { class: "dim" }, facts.join(" · ")));
}

function turnTable(ledger) {
  const names = kindsOf([ledger]);
  return new Rows({
    label: `Turns of ${ledger.name}`, rows: ledger.turns, lines: 12, follow: Boolean(data.live), open: (turn) => turn && openTurn(ledger, turn.n), marked: (turn) => (turn.n === now.turn ? "shown" : ""),
    columns: [
      { title: "Turn", css: "c-turn number", cell: (turn) => turn.n },
      { title: "Tokens", css: "c-tokens number", cell: (turn) => (turn.unsent ? "not sent" : count(turn.out)) },
      { title: "Budget", css: "c-tokens number", cell: (turn) => (turn.budget ? count(turn.budget) : "–") },
      { title: "Used", css: "c-tokens number", hint: "Share of the budget used by the prompt, or by the messages if the limit applies to messages only", cell: (turn) => (turn.budget && !turn.unsent ? budgetUsed(turn) : "–") },
      { title: "Dropped", css: "c-tokens number", hint: "Newly dropped items", cell: (turn) => count(turn.new ?? 0) },
      { title: "Prefix broke", css: "c-break", cell: (turn) => (isBroken(turn) ? words(turn.break) : "") },
      { title: "Marks", css: "c-break", cell: (turn) => ledger.marks(turn).map((mark) => MARKS[mark].label).join(", ") },
      ...names.map((name) => ({ title: kindLabel(name), css: "c-fill number", cell: (turn) => { const tokens = turn.kinds?.find(([kindName]) => kindName === name)?.[1]; return tokens === undefined ? "" : count(tokens); } })),
    ],
  });
}

function toggleTable() {
  now.table = !now.table;
  parts.table.setAttribute("aria-pressed", String(now.table));
  drawCharts();
  say(now.table ? "Turns as a table" : "Turns as a chart");
}

// Selecting another turn

const chartEvents = {
  key: chartKey,
  focus: (ledger) => { if (now.ledger !== ledger.number) { now.ledger = ledger.number; if (!ledger.turn(now.turn)) now.turn = ledger.nearest(now.turn); point(); } },
  open: (ledger, number) => { if (number !== null) openTurn(ledger, number); },
  hover: (ledger, number, event) => {
    parts.tip.hidden = !ledger || number === null;
    if (parts.tip.hidden) return;
    const turn = ledger.turn(number);
    refill(parts.tip, el("b", {}, `Turn ${number}`), el("div", {}, ledger.sentence(turn).split("; ").slice(1).map((line) => el("div", {}, line))),
      el("div", { class: "tip-kinds" }, [...(turn.kinds ?? [])].sort(([name], [otherName]) => kind(name).rank - kind(otherName).rank).map(([name, tokens]) => [kindLabel(name), el("b", {}, count(tokens))])));
    const box = byId("main").getBoundingClientRect();
    const x = event.clientX - box.left, flip = x > box.width - 240;
    parts.tip.style.transform = `translate(${flip ? x - 236 : x + 14}px, ${event.clientY - box.top + 12}px)`;
  },
};

function chartKey(ledger, event) {
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  const by = { ArrowRight: 1, ArrowLeft: -1, PageDown: 10, PageUp: -10, End: Infinity, Home: -Infinity }[event.key];
  const ledgers = here().ledgers;
  if (by !== undefined) go(ledger, ledger.step(now.turn, by));
  else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && ledgers.length > 1) {
    const next = charts[(ledger.number + (event.key === "ArrowDown" ? 1 : ledgers.length - 1)) % ledgers.length];
    next.layer.focus();
    intoView(next.box);
    go(next.ledger, next.ledger.nearest(now.turn));
  } else if (event.key === "Enter" || event.key === " ") openTurn(ledger, now.turn, true);
  else if (event.key === "n" || event.key === "p") {
    const order = event.key === "n" ? ledger.turns : ledger.turns.toReversed();
    const next = order.find((turn) => (event.key === "n" ? turn.n > now.turn : turn.n < now.turn) && ledger.marks(turn).length);
    if (next) go(ledger, next.n);
    else say("No further mark");
  } else return;
  event.preventDefault();
}

function go(ledger, number) {
  now.ledger = ledger.number;
  now.turn = number;
  reveal();
  point();
  if (now.open) showTurn();
  const turn = ledger.turn(number);
  say(`${here().ledgers.length > 1 ? `${ledger.name}. ` : ""}${ledger.sentence(turn)}`);
}

function point() {
  for (const chart of charts) {
    const turn = chart.ledger.turn(now.turn);
    chart.cursor.hidden = !turn;
    if (turn) chart.point(turn, chart.ledger.number === now.ledger);
    else if (chart.ledger.turns.length) {
      chart.cursor.setAttribute("aria-label", `Turn ${now.turn} is not in these spans`);
    }
  }
  const hash = new URLSearchParams({ c: now.conversation, l: now.ledger, t: now.turn, ...(now.open ? { o: 1 } : {}), ...(now.item !== null ? { i: now.item } : {}) });
  clearTimeout(point.later);
  point.later = setTimeout(() => history.replaceState(null, "", `#${hash}`), 200);
}

// The panel of a turn and of an item

function openTurn(ledger, number, byKey = false) {
  Object.assign(now, { ledger: ledger.number, turn: number, open: true });
  reveal();
  point();
  showTurn();
  if (byKey) byId("turn-head").focus({ preventScroll: true });
  if (parts.turn.getBoundingClientRect().top > innerHeight - 160) parts.turn.scrollIntoView({ block: "start", behavior: still() ? "auto" : "smooth" });
  say(ledger.sentence(ledger.turn(number)));
}

function showTurn() {
  parts.hint.hidden = true;
  const ledger = active(), turn = ledger.turn(now.turn);
  parts.turn.hidden = !turn;
  if (!turn) return;
  const place = ledger.places.get(turn.n);
  const to = (by) => go(ledger, ledger.step(turn.n, by));
  const focused = document.activeElement?.dataset?.keep;
  refill(parts.turn,
    el("div", { class: "bar" }, el("h2", { id: "turn-head", tabindex: "-1" }, `Turn ${turn.n}`, here().ledgers.length > 1 ? el("span", { class: "dim" }, " · ", foreign(ledger.name)) : null),
      el("button", { type: "button", class: "icon", "data-keep": "before", "aria-label": "Turn before", onclick: () => to(-1) }, "‹"),
      el("button", { type: "button", class: "icon", "data-keep": "after", "aria-label": "Next turn", onclick: () => to(1) }, "›"),
      el("button", { type: "button", class: "icon", "aria-label": "Close the turn", onclick: closeTurn }, "✕")),
    turn.unsent ? el("p", { class: "note alarm" }, "Nothing was sent: the assembly failed.") : null,
    turn.signals ? el("ul", { class: "signals", "aria-label": "Marks of this turn" }, turn.signals.map((signal) => signalLine(signal, turn))) : null,
    headFacts(ledger, turn, place), kindsTable(turn),
    changesOf(turn, (item) => follow(item)), variantsOf(here().ledgers, ledger, turn.n, (variant) => { if (variant.turn(now.turn)) openTurn(variant, now.turn); }),
    policiesOf(turn), allocationsOf(turn), promptsOf(turn, texts),
    itemsOf(ledger, turn, place, texts, now.filter, {
      follow: (item) => follow(item), filter: (name) => { now.filter = name; }, followed: () => now.item, made: (table) => { parts.items = table; } }),
    el("p", { class: "dim small" }, `${new Date(turn.start).toISOString().replace("T", " ").replace("Z", " UTC")} · took ${(turn.us / 1000).toFixed(2)} ms · trace `, traceOf(turn)));
  parts.items.settle();
  if (focused) parts.turn.querySelector(`[data-keep="${focused}"]`)?.focus();
}

function traceOf({ trace, span }) {
  const code = el("code", {}, trace), to = data.traceLink;
  return to ? el("a", { href: to.replaceAll("{trace}", encodeURIComponent(trace)).replaceAll("{span}", encodeURIComponent(span)), target: "_blank", rel: "noopener noreferrer" }, code) : code;
}

function closeTurn() {
  now.open = false;
  parts.turn.hidden = true;
  parts.hint.hidden = false;
  point();
  focusChart();
}

function focusChart() {
  (charts[now.ledger]?.layer ?? parts.charts.querySelector(".rows"))?.focus({ preventScroll: false });
}

function follow(id, focus = false) {
  const item = active().item(id);
  now.item = id;
  parts.item.hidden = false;
  refill(parts.item, itemCard(active(), item, texts, { turn: now.turn, follow: (itemId) => follow(itemId), unfollow }));
  strips();
  point();
  if (focus) byId("item-head").focus({ preventScroll: true });
  const box = parts.item.getBoundingClientRect();
  if (box.top > innerHeight - 120 || box.bottom < 60) intoView(parts.item);
  say(`Item ${id}. ${active().stretches(item).map((stretch) => `turns ${stretch.from} to ${stretch.to}: ${stretch.state ? why(stretch.state) : "unknown"}`).join("; ")}`);
}

function unfollow() {
  now.item = null;
  parts.item.hidden = true;
  strips();
  point();
  focusChart();
}

// Each ledger numbers its own items: items of two variants are the same only if number, kind, bytes and atom agree.
function strips(marks = true) {
  if (marks) parts.items?.draw(true);
  const item = now.item === null ? null : active().item(now.item);
  for (const chart of charts) {
    const match = item && chart.ledger.items.get(item.o);
    const same = match && (chart.ledger === active() || (match.k === item.k && match.b === item.b && match.a === item.a));
    refill(chart.strips, same ? strip(chart, chart.ledger, match) : null);
    chart.strips.firstChild?.place();
  }
}

// The whole page

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.matches?.("input, select, textarea");
  if (event.key === "Escape" && !typing) {
    if (now.open && (now.item === null || !parts.item.contains(document.activeElement))) closeTurn();
    else if (now.item !== null) unfollow();
  } else if (event.key === "/" && !typing) {
    event.preventDefault();
    parts.search.focus();
  } else if (typing || !here()) return;
  else if (event.key === "t") toggleTable();
  else if (event.key === "+" || event.key === "=") zoom(0.5);
  else if (event.key === "-") zoom(2);
  else if (event.key === "0") { fit(Infinity); moved(); }
});
document.addEventListener("pointerdown", (event) => { if (!event.target.closest?.(".finder")) closeResults(false); });

function footer() {
  const key = (...names) => names.map((name) => el("kbd", {}, name));
  refill(byId("foot"), el("p", {}, "Keys: ", key("←", "→"), " turn, ", key("↑", "↓"), " variant, ", key("n", "p"), " next or previous mark, ", key("Enter"), " open, ", key("Esc"), " close, ",
    key("+", "−", "0"), " zoom, ", key("/"), " find, ", key("t"), " table."),
  el("p", {}, data.live ? "Made by otel-assembly watch. Only that command receives requests from this page." : "Made by otel-assembly. Nothing is loaded and nothing is sent."));
}

function start() {
  if (!data.live) apply(data);
  header();
  footer();
  byId("side").hidden = true;
  new ResizeObserver(() => { for (const chart of charts) chart.resize(); if (charts.length) moved(); }).observe(byId("main"));
  if (data.live) {
    showNothing();
    listen();
    return;
  }
  if (!conversations.length) {
    refill(byId("main"), el("p", { class: "note" }, "These spans contain no assemblies."));
    return;
  }
  list();
  const asked = selection();
  // If the address selects nothing, start with the first overflow.
  const when = (conversation) => conversation.ledgers.reduce((first, { overflow }) => Math.min(first, overflow?.start ?? Infinity), Infinity);
  const first = conversations.reduce((best, conversation, index) => (when(conversation) < when(conversations[best]) ? index : best), 0);
  choose(asked.c in conversations ? asked.c : first);
  if (!location.hash && active().overflow) openTurn(active(), now.turn);
  select(asked);
  document.documentElement.dataset.ready = "";
}

// The conversation, the ledger, the turn and the item that the address selects.
function selection() {
  const asked = new URLSearchParams(location.hash.slice(1)), number = (name) => (asked.has(name) ? Number(asked.get(name)) : null);
  return { c: number("c"), l: number("l"), t: number("t"), open: asked.has("o"), item: asked.get("i") };
}

function select({ l, t, open, item }) {
  const ledger = here().ledgers[l ?? 0];
  if (!ledger?.turn(t)) return;
  if (open) openTurn(ledger, t);
  else go(ledger, t);
  if (item !== null) follow(item);
}

// Shows the list of conversations if there are several.
function list() {
  if (side) side.update();
  else if (conversations.length > 1) {
    side = sideList(conversations, (index) => choose(index, true));
    byId("side").append(side.node);
    byId("side").hidden = false;
  }
}

start();
