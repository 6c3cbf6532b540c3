// The list of a turn's items, and the state of one selected item on all turns.

const STATES = { "in prompt": "●", dropped: "▼", compacted: "◆", left: "?" };
const badge = (state) => el("span", { class: `state ${state.in ? "kept" : state.word}` }, el("span", { "aria-hidden": "true" }, STATES[state.word] ?? "▼"), ` ${state.word}`);

// The ids of all items of a turn, in the order of its input. An item that a policy made comes before the item that
// follows it in the prompt; items that are only in lists of policies come last.
function itemsIn(ledger, turn) {
  const kept = expand(turn.kept), lists = (turn.steps ?? []).flatMap((step) => [...(step.drops ?? []).map(([, runs]) => runs), step.gone, step.made].flatMap(expand));
  const order = turn.offered ? expand(turn.offered) : [...new Set([...kept, ...lists])].sort(byItem);
  const there = new Set(order), before = new Map();
  let next = null;
  for (const id of kept.toReversed()) if (there.has(id)) next = id;
    else before.set(next, [id, ...(before.get(next) ?? [])]);
  const made = new Set([...there, ...kept]);
  return [...order.flatMap((id) => [...(before.get(id) ?? []), id]), ...(before.get(null) ?? []), ...[...new Set(lists)].filter((id) => !made.has(id))];
}

// The text of an item; empty if it was not captured, or if its conversation was removed and is drawn once more.
const textOf = (item, texts) => texts[item.x]?.[0] ?? "";

function itemRows(ledger, turn, place) {
  const order = new Map(expand(turn.kept).map((item, index) => [item, index]));
  const end = prefixEnd(ledger, turn, place);
  const fresh = new Set(["arrived", "left", "refused", "returned", "injected", "replaced"].flatMap((name) => expand(turn[name])));
  return itemsIn(ledger, turn).map((id) => ({
    item: ledger.item(id), state: order.has(id) ? { word: "in prompt", in: true } : ledger.state(id, place), tokens: ledger.tokens(id, place),
    at: order.get(id), fresh: fresh.has(id), breaks: end && order.has(id) && end.after === order.get(id),
  }));
}

// The items in the prompt are sorted by their place in the prompt, which can differ from the order of the input.
const sorted = (rows, filter) => (filter === "in" ? rows.sort((row, nextRow) => row.at - nextRow.at) : rows);

const FILTERS = {
  all: ["All", () => true],
  in: ["In prompt", (row) => row.state.in],
  out: ["Left out", (row) => !row.state.in],
  new: ["Changed here", (row) => row.fresh],
};

function itemsOf(ledger, turn, place, texts, filter, on) {
  const all = itemRows(ledger, turn, place);
  const any = all.some(({ item }) => item.x !== undefined);
  const columns = [
    { title: "Item", css: "c-item", cell: ({ item }) => item.o },
    { title: "State", css: "c-state", cell: ({ state }) => badge(state) },
    { title: "Kind", css: "c-kind", cell: ({ item }) => kindLabel(item.k) },
    { title: "Tokens", css: "c-tokens number", cell: ({ tokens }) => (tokens === null ? "?" : count(tokens)) },
    { title: "Since", css: "c-since number", hint: "The first turn of this state; ≤ if the turns before it are missing from the spans", cell: ({ item }) => ledger.since(item.o, place) },
    { title: "Rule and policy", css: "c-rule", cell: ({ state }) => (state.in || state.word === "not sent" ? "" : [state.reason ?? (state.some.length ? [...new Set(state.some.map(({ reason }) => reason))].join(" or ") : "reason unknown"), state.policy ? el("span", { class: "dim" }, " ", foreign(state.policy)) : null]) },
    ...(any ? [{ title: "Text", css: "c-text", cell: ({ item }) => foreign(textOf(item, texts).slice(0, 200)) }] : []),
  ];
  const table = new Rows({
    label: `Items after turn ${turn.n}`, columns, rows: sorted(all.filter(FILTERS[filter][1]), filter), open: (row) => row && on.follow(row.item.o),
    marked: (row) => `${on.followed() === row.item.o ? "shown " : ""}${row.state.in ? "" : "gone "}${row.fresh ? "fresh " : ""}${row.breaks ? "breaks" : ""}`,
  });
  // Scroll to the first item of the prompt, because a long conversation begins with many dropped items.
  table.settle = () => {
    const first = filter === "all" ? all.findIndex((row) => row.at !== undefined) : 0;
    if (first > 6 && all.length > 14) table.box.scrollTop = (first - 5) * table.height;
    table.draw(true);
  };
  on.made(table);
  const buttons = Object.entries(FILTERS).map(([name, [label, keep]]) => el("button", {
    type: "button", class: "tab", "aria-pressed": String(name === filter), "data-filter": name,
    onclick: (event) => {
      for (const button of event.currentTarget.parentNode.children) button.setAttribute("aria-pressed", String(button === event.currentTarget));
      on.filter(name);
      table.show(sorted(all.filter(keep), name));
    },
  }, `${label} `, el("span", { class: "dim" }, count(all.filter(keep).length))));
  return el("section", { class: "items" }, el("h3", {}, "Items"), el("div", { class: "tabs", role: "group", "aria-label": "Which items" }, buttons), table.box);
}

function itemCard(ledger, item, texts, on) {
  const mates = [...ledger.items.values()].filter((row) => row.a !== undefined && row.a === item.a && row.o !== item.o).map((row) => row.o);
  const last = at(item.n, Infinity);
  const holders = [...ledger.items.values()].filter((row) => row.s && row.t <= on.turn && among(parse(row.s), idOf(item.o))).map((row) => row.o);
  const turn = ledger.turn(on.turn), holder = holders.findLast((id) => turn && among(ledger.runs(turn).kept, idOf(id))) ?? holders.at(-1);
  return [
    el("div", { class: "bar" }, el("h2", { tabindex: "-1", id: "item-head" }, `Item ${item.o} `, kindLabel(item.k)),
      el("button", { type: "button", class: "icon", "aria-label": "Stop following this item", onclick: on.unfollow }, "✕")),
    el("p", { class: "dim" }, ledger.name),
    el("dl", { class: "facts" },
      fact("Tokens", last ? count(last[1]) : "unknown"), item.b !== undefined ? fact("Bytes", count(item.b)) : null,
      item.t !== undefined ? fact("Arrived", `turn ${item.t}`) : fact("Arrived", "unknown: the span of its arrival is missing"),
      holder !== undefined ? fact("Covered by", chips([holder], on.follow)) : null,
      item.s ? fact("Stands for", chips(item.s, on.follow)) : null,
      mates.length ? fact("Kept or dropped with", chips(mates, on.follow)) : null),
    el("h3", {}, "Across the turns"),
    stretchList(ledger, item),
    el("h3", {}, "Text"),
    captured(texts[item.x]),
  ];
}

function stretchList(ledger, item) {
  const where = (stretch) => (stretch.from === stretch.to ? `turn ${stretch.from}` : `turns ${stretch.from}–${stretch.to}`);
  return el("ol", { class: "stretches" }, ledger.stretches(item).map((stretch) => el("li", { class: !stretch.state ? "unknown" : stretch.state.in ? "kept" : stretch.state.word },
    el("b", {}, where(stretch)), " ", stretch.state ? why(stretch.state) : "unknown: these turns were not recorded")));
}

// A strip under the chart: the state of the followed item on each turn.
function strip(chart, ledger, item) {
  const made = el("div", { class: "strip", role: "img", "aria-label": `Item ${item.o} across the turns of ${ledger.name}; the item's list has the same information` });
  made.place = () => {
    const right = chart.width - EDGE.right;
    refill(made, el("span", { class: "strip-name" }, `item ${item.o}`), ledger.stretches(item).map((stretch) => {
      const from = Math.max(EDGE.left, chart.x(stretch.from - 0.5)), to = Math.min(right, chart.x(stretch.to + 0.5));
      if (to <= from) return null;
      const state = stretch.state;
      return el("span", {
        class: `stretch ${!state ? "unknown" : state.in ? "kept" : state.word}`, style: { left: `${from}px`, width: `${Math.max(2, to - from - 1)}px` },
        title: state ? why(state) : "not recorded",
      }, to - from > 70 ? (state ? (state.reason ?? (state.reason === null ? "reason unknown" : state.word)) : "?") : "");
    }));
  };
  return made;
}

function search(ledgers, texts, query) {
  const wanted = query.trim().toLocaleLowerCase();
  if (!wanted) return { found: [], total: 0, anyText: true };
  const id = wanted.replace(/^#/, "");
  const hits = new Map();
  const exactly = [], found = [];
  let total = 0, anyText = false;
  for (const ledger of ledgers) for (const item of ledger.items.values()) {
    anyText ||= item.x !== undefined;
    let where = -1;
    if (item.x !== undefined) {
      if (!hits.has(item.x)) hits.set(item.x, textOf(item, texts).toLocaleLowerCase().indexOf(wanted));
      where = hits.get(item.x);
    }
    const exact = id === item.o;
    if (!exact && where < 0 && !(item.k && words(item.k).startsWith(words(wanted)))) continue;
    total++;
    if (exact) exactly.push({ ledger, item, where });
    else if (found.length < 200) found.push({ ledger, item, where });
  }
  return { found: [...exactly, ...found].slice(0, 200), total, anyText };
}
