// The search field: finds items of the current conversation by number, kind or text.

let waiting = null, results = null;
function find() {
  clearTimeout(waiting);
  waiting = setTimeout(() => {
    const query = parts.search.value;
    const ledgers = here()?.ledgers ?? [];
    const { found, total, anyText } = search([...ledgers.slice(now.ledger), ...ledgers.slice(0, now.ledger)], texts, query);
    results = { found, active: -1 };
    const many = ledgers.length > 1;
    refill(parts.results, found.map(({ ledger, item, where }, index) => el("div", {
      role: "option", id: `result-${index}`, class: "result", "aria-selected": "false", onmousedown: (event) => { event.preventDefault(); pick(index); },
    }, el("span", { class: "c-item" }, item.o), kindLabel(item.k), many ? foreign(ledger.name, "span", { class: "dim" }) : null,
    where >= 0 ? snippet(textOf(item, texts), where, query.trim().length) : null)));
    const shown = query.trim() !== "";
    parts.results.hidden = !shown || !found.length;
    parts.search.setAttribute("aria-expanded", String(!parts.results.hidden));
    parts.search.removeAttribute("aria-activedescendant");
    const note = !shown ? "" : found.length ? (total > found.length ? `Showing the first ${count(found.length)} of ${count(total)}.` : "")
      : anyText ? "Nothing found." : "Nothing found. The spans contain no text: search by number or kind.";
    refill(parts.note, note);
    parts.note.hidden = !note || found.length > 0;
    if (shown) say(found.length ? `${plural(total, "item")} found` : note);
  }, 80);
}

function snippet(text, where, length) {
  const from = Math.max(0, where - 24);
  return el("bdi", { class: "snippet", dir: "auto" }, from ? "…" : "", text.slice(from, where), el("mark", {}, text.slice(where, where + length)), text.slice(where + length, where + length + 80));
}

function searchKey(event) {
  const most = results?.found.length ?? 0;
  if (event.key === "Escape") closeResults(true);
  else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && most) {
    results.active = (results.active + (event.key === "ArrowDown" ? 1 : most - (results.active < 0 ? 0 : 1))) % most;
    for (const [index, node] of [...parts.results.children].entries()) node.setAttribute("aria-selected", String(index === results.active));
    parts.results.children[results.active].scrollIntoView({ block: "nearest" });
    parts.search.setAttribute("aria-activedescendant", `result-${results.active}`);
  } else if (event.key === "Enter" && most) pick(Math.max(0, results.active));
  else return;
  event.preventDefault();
  event.stopPropagation();
}

function closeResults(clear) {
  if (clear) parts.search.value = "";
  parts.results.hidden = parts.note.hidden = true;
  parts.search.setAttribute("aria-expanded", "false");
}

function forgetResults() {
  results = null;
  closeResults(false);
}

function pick(index) {
  const { ledger, item } = results.found[index];
  closeResults(false);
  now.ledger = ledger.number;
  follow(item.o, true);
}
