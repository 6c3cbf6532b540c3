// A page of `otel-assembly watch`: patches arrive as server-sent events and are drawn at most once a frame.

const live = { changed: new Map(), frame: null, whole: false, kept: null, drawn: null, draws: 0 };

function listen() {
  const source = new EventSource(`events${location.search}`);
  const state = (name, text) => { parts.state.dataset.state = name; refill(parts.state, text); };
  state("waiting", "connecting");
  // The server sends everything when a connection begins, also when the browser connects again.
  source.addEventListener("reset", () => {
    if (conversations.length && live.whole) live.kept = { key: here().key, ledger: active().raw.id, l: now.ledger, t: now.turn, open: now.open, item: now.item, chosen: now.chosen };
    conversations.length = texts.length = named = 0;
    Object.assign(live, { whole: false, drawn: null, changed: new Map() });
    state("waiting", "loading");
  });
  source.addEventListener("ready", () => { live.whole = true; state("live", "live"); later(); });
  source.addEventListener("ended", (event) => { live.ended = event.data; state("ended", event.data); });
  source.addEventListener("refusals", (event) => showRefusals(JSON.parse(event.data)));
  source.onmessage = (event) => receive(JSON.parse(event.data));
  source.onerror = () => state("ended", live.ended ?? (source.readyState === EventSource.CLOSED ? "watch has ended" : "not connected"));
}

function receive(patch) {
  for (const key of patch.removed ?? []) remove(key);
  for (const [ledger, turns] of apply(patch)) live.changed.set(ledger, new Set([...(live.changed.get(ledger) ?? []), ...turns]));
  for (const [id, first] of Object.entries(patch.trimmed ?? {})) for (const { ledgers } of conversations) for (const ledger of ledgers) if (ledger.raw.id === id) {
    ledger.trim(first);
    live.changed.set(ledger, live.changed.get(ledger) ?? new Set());
  }
  later();
}

// Removes a conversation, the oldest, because the command keeps a limited number of turns.
function remove(key) {
  const index = conversations.findIndex((conversation) => conversation.key === key);
  if (index < 0) return;
  const [gone] = conversations.splice(index, 1);
  for (const ledger of gone.ledgers) for (const number of [...[...ledger.items.values()].map(({ x }) => x), ...ledger.turns.flatMap(({ said }) => said ?? [])]) delete texts[number];
  if (index < now.conversation) now.conversation--;
  else if (index === now.conversation && live.drawn) {
    live.drawn = null;
    now.removed = gone;
    forgetResults();
  }
}

function showNothing() {
  charts = [];
  refill(byId("main"), el("p", { class: "note" }, "No assembly has arrived yet. A turn is shown here when a program makes a model call."));
}

function later() {
  if (live.whole) live.frame ??= requestAnimationFrame(() => {
    const began = performance.now();
    live.frame = null;
    redraw();
    // Tests read the duration of each update.
    if (++live.draws % 1000 === 0) performance.clearMeasures("update");
    performance.measure("update", { start: began });
    document.documentElement.dataset.ready = "";
  });
}

// A subagent of a log is a conversation of its own, whose id begins with that of the main agent.
const isSubagent = ({ id }) => conversations.some((main) => main.id && id?.startsWith(`${main.id}/`));

function redraw() {
  const changed = live.changed;
  live.changed = new Map();
  tally();
  if (!conversations.length) return showNothing();
  list();
  if (live.drawn === null) return reopen();
  const newest = conversations.at(-1), { ledgers } = here();
  // A new conversation is shown, unless the reader has chosen one or has opened a turn.
  if (newest !== here() && !isSubagent(newest) && newest.fresh !== false && !now.chosen && !now.open) {
    for (const conversation of conversations) conversation.fresh = false;
    choose(conversations.length - 1);
    live.drawn = drawn();
    return;
  }
  newest.fresh = false;
  if (!ledgers.some((ledger) => changed.has(ledger))) return;
  const last = live.drawn.last;
  if (now.turn === last.get(active().raw.id) && !now.open) now.turn = active().last;
  followEnd(live.drawn.to);
  const rebuilt = ledgers.length !== live.drawn.ledgers;
  if (rebuilt) conversation();
  else update();
  if (now.open && (rebuilt || changed.get(active())?.has(now.turn))) showTurn();
  if (now.item !== null && rebuilt) follow(now.item);
  if (now.item !== null) {
    strips(false);
    parts.item.querySelector(".stretches")?.replaceWith(stretchList(active(), active().item(now.item)));
  }
  point();
  live.drawn = drawn();
}

// The state that the next redraw compares with.
const drawn = () => ({ to: ends().to, ledgers: here().ledgers.length, last: new Map(here().ledgers.map((ledger) => [ledger.raw.id, ledger.last])) });

// Draws the page of the first patches, or again after the connection was lost, with the same selection.
function reopen() {
  const asked = live.kept ?? (live.opened ? { c: null, t: null } : selection());
  const index = live.kept ? conversations.findIndex(({ key }) => key === asked.key) : asked.c ?? -1;
  choose(index in conversations ? index : conversations.findLastIndex((conversation) => !isSubagent(conversation)), asked.chosen ?? (asked.c ?? null) !== null);
  if (index in conversations && asked.t !== null) select(asked);
  Object.assign(live, { kept: null, opened: true });
  for (const conversation of conversations) conversation.fresh = false;
  live.drawn = drawn();
}

// Draws the charts or the tables of the shown conversation again, with the same elements.
function update() {
  const { ledgers } = here(), kinds = kindsOf(ledgers), marks = marksOf(ledgers), scale = scales(ledgers);
  for (const [index, ledger] of ledgers.entries()) {
    const head = chartHead(ledger);
    parts.heads[index].replaceWith(head);
    parts.heads[index] = head;
  }
  if (now.table) {
    for (const [index, table] of parts.tables.entries()) table.update(ledgers[index].turns);
    return;
  }
  if (charts.some((chart, index) => chart.own !== scale[index].own)) return drawCharts(kinds, marks);
  legend(ledgers, kinds, marks);
  for (const [index, chart] of charts.entries()) {
    Object.assign(chart, { kinds, lanes: marks, ...scale[index] });
    chart.move();
  }
  layout();
}
