// The panel of a turn: its numbers, changes, policies, allocations, prompts and items.

const fact = (name, ...value) => el("div", { class: "fact" }, el("dt", {}, name), el("dd", {}, value));

const flow = (step) => (step.in === undefined ? `unknown → ${count(step.out)}` : `${count(step.in)} → ${count(step.out)}`);

function chips(runs, open) {
  return el("span", { class: "chips" }, (runs ?? []).map((run) => {
    const first = run.split("-")[0];
    return el("button", { type: "button", class: "chip", onclick: () => open(first), "aria-label": `Follow item ${run.replace("-", " to ")}` }, run.replace("-", "–"));
  }));
}

const CHANGES = [
  ["arrived", "Arrived"], ["injected", "Injected"], ["returned", "Returned"],
  ["left", "Dropped"], ["refused", "Arrived, dropped"], ["replaced", "Compacted"], ["gone", "No longer offered"],
];

function changesOf(turn, open) {
  const rows = CHANGES.filter(([name]) => turn[name])
    .map(([name, label]) => fact(`${label} (${plural(size(turn[name]), "item")})`, chips(turn[name], open)));
  return el("section", {}, el("h3", {}, turn.after === undefined ? "Since the turn before" : `Since turn ${turn.after}`),
    turn.unsent ? el("p", { class: "note" }, "Nothing was sent.")
      : turn.partial ? el("p", { class: "note warn" }, "The span of a policy is missing, so it is unknown why some items were dropped.") : null,
    rows.length ? el("dl", { class: "facts changes" }, rows) : turn.unsent ? null : el("p", { class: "note" }, "No item was added or removed."));
}

// A framework's policy may count fewer tokens than are sent; the line then names the uncounted kinds.
function countedBy(signal, turn) {
  const counted = turn.budget && signal.cause === "framework" ? turn.budget + signal.tokens : NaN, rest = turn.out - counted;
  if (turn.unsent || !(rest > 0)) return null;
  const aside = (turn.kinds ?? []).filter(([name]) => ["prompt", "tool_schemas", "framing"].includes(name));
  const which = aside.reduce((sum, [, tokens]) => sum + tokens, 0) === rest ? `, without ${aside.map(([name, tokens]) => `${words(name)} ${count(tokens)}`).join(", ")}` : "";
  return `the framework counts ${count(counted)} of the ${count(turn.out)} tokens${which}`;
}

function signalLine(signal, turn) {
  const mark = MARKS[signal.what];
  const said = [];
  if (signal.severity) said.push(signal.severity);
  if (signal.cause) said.push(words(signal.cause));
  if (signal.policy) said.push(`by ${signal.policy}`);
  const limit = signal.cause === "window" ? turn.window && ` the model window of ${count(turn.window)}` : turn.budget && ` the budget of ${count(turn.budget)}`;
  if (signal.tokens !== undefined) said.push(`${count(signal.tokens)} tokens over${limit || ""}`);
  if (signal.source) said.push(`from ${signal.source}`);
  if (signal.after) said.push("after this turn");
  if (signal.untold) said.push(`${signal.count > 1 ? `${signal.count} of them, ` : ""}counted on the span; the spans contain no details`);
  const more = signal.tokens === undefined ? null : turn.needs ? `needed ${plural(turn.needs, "token")}` : countedBy(signal, turn);
  return el("li", { class: `signal ${signal.what}` }, el("span", { class: `mark ${signal.what}`, "aria-hidden": "true" }, mark.symbol),
    " ", el("strong", {}, mark.label), " ", foreign(said.join(", ")), more ? `; ${more}` : null, signal.says ? [": ", foreign(signal.says, "q")] : null);
}

function settings(config) {
  try {
    return Object.entries(JSON.parse(config)).filter(([, value]) => value !== null && value !== false)
      .map(([name, value]) => `${name}=${typeof value === "object" ? JSON.stringify(value) : value}`).join(" ");
  } catch {
    return String(config);
  }
}

const cell = (css, ...value) => el("td", { class: css }, value);

function simpleTable(label, heads, rows) {
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, el("table", {},
    el("thead", {}, el("tr", {}, heads.map(([title, css]) => el("th", { scope: "col", class: css }, title)))), el("tbody", {}, rows)));
}

// A policy's dropped items by reason; items that it does not list share one entry for all their reasons.
function reasonsOf(step) {
  const lists = new Map((step.drops ?? []).map(([reason, runs]) => [reason, size(runs)]));
  const rest = (step.dropped ?? 0) - [...lists.values()].reduce((sum, many) => sum + many, 0);
  if (step.rest?.length === 1) lists.set(step.rest[0], (lists.get(step.rest[0]) ?? 0) + rest);
  const said = [...lists].map(([reason, many]) => `${reason} × ${count(many)}`);
  return step.rest?.length > 1 ? [...said, `${step.rest.join(" or ")} × ${count(rest)}`] : said;
}

function policiesOf(turn) {
  if (!turn.steps?.length) {
    const missing = turn.partial || turn.unsent;
    return el("section", {}, el("h3", {}, "Policies"), el("p", { class: "note" }, missing ? "The spans of the policies are missing." : "No policy and no reducer ran."));
  }
  const rows = turn.steps.flatMap((step) => [el("tr", {},
    cell("name", foreign(step.policy)),
    cell("number", flow(step)),
    cell("number", step.dropped ? count(step.dropped) : "–"), cell("number", step.compacted ? count(step.compacted) : "–"),
    cell("number", step.inserted ? count(step.inserted) : "–"),
    cell("wide", reasonsOf(step).join(", ") || "–",
      step.error ? el("div", { class: "alarm" }, foreign(step.error)) : null)),
  step.config ? el("tr", { class: "more" }, el("td", { colspan: "6", class: "config" }, foreign(settings(step.config)))) : null]);
  return el("section", {}, el("h3", {}, "Policies, in order"), simpleTable("Policies of this turn",
    [["Policy", "name"], ["Tokens", "number"], ["Dropped", "number"], ["Compacted", "number"], ["Injected", "number"], ["Why", "wide"]], rows));
}

function attemptLine(attempt) {
  const said = Object.entries(attempt.said ?? {}).map(([name, value]) => `${words(name)} ${value}`);
  return el("li", {}, "Compaction", attempt.kind ? ` of ${attempt.kind}` : "", attempt.policy ? ` by ${attempt.policy}` : "",
    `: ${count(attempt.in)} → ${count(attempt.out)} tokens`, attempt.error ? `, ${attempt.error}` : "", said.length ? ["; ", foreign(said.join("; "))] : null);
}

function allocationsOf(turn) {
  const parts = (turn.allocations ?? []).map((allocation) => {
    const blocks = (allocation.blocks ?? []).map((block) => [el("tr", {},
      cell("name", foreign(block.name ?? "unnamed")), cell("", block.kind ? kindLabel(block.kind) : "–"), cell("number", count(block.priority)),
      cell("number", `${count(block.in)} → ${count(block.out)}`), cell("", words(block.outcome ?? "unknown")), cell("", block.reason ?? "unknown"),
      cell("number", block.floor ? count(block.floor) : "–"), cell("number", count(block.remaining))),
    block.attempts ? el("tr", {}, el("td", { colspan: "8" }, el("ul", { class: "attempts" }, block.attempts.map(attemptLine)))) : null]);
    return [el("p", { class: "note" }, [
      allocation.policy ? `By ${allocation.policy}. ` : "", `Window ${count(allocation.window)}, reserve ${count(allocation.reserve)}, budget ${count(allocation.budget)}; fixed ${count(allocation.fixed)}, used ${count(allocation.used)}, left over ${count(allocation.remaining)}.`]),
    blocks.length ? simpleTable("Blocks, in the order of decision",
      [["Block", "name"], ["Kind"], ["Priority", "number"], ["Tokens", "number"], ["Outcome"], ["Reason"], ["Minimum", "number"], ["Budget left", "number"]], blocks.flat()) : null,
    allocation.others ? el("details", {}, el("summary", {}, plural(allocation.others.length, "further block")), simpleTable("Further blocks", [["Block", "name"], ["Outcome"], ["Reason"], ["Tokens", "number"]],
      allocation.others.map(([name, outcome, reason, tokens]) => el("tr", {}, cell("name", foreign(name)), cell("", words(outcome)), cell("", reason), cell("number", count(tokens)))))) : null,
    allocation.attempts ? el("ul", { class: "attempts" }, allocation.attempts.map(attemptLine)) : null];
  });
  if (turn.attempts) parts.push(el("ul", { class: "attempts" }, turn.attempts.map(attemptLine)));
  return parts.length ? el("section", {}, el("h3", {}, "Allocation"), parts) : null;
}

// The item at which the cached prefix ends; null if unknown.
function prefixEnd(ledger, turn, place) {
  if (turn.prefix === undefined || !isBroken(turn)) return null;
  const schemas = (turn.kinds ?? []).find(([name]) => name === "tool_schemas")?.[1] ?? 0;
  const prompts = (turn.prompts ?? []).reduce((sum, [, tokens]) => sum + tokens, 0);
  let sum = schemas + prompts, end = turn.prefix === sum ? 0 : null;
  if (turn.prefix < sum) return { within: true };
  for (const [index, id] of expand(turn.kept).entries()) {
    const tokens = ledger.tokens(id, place);
    if (tokens === null || sum > turn.prefix) break;
    sum += tokens;
    if (sum === turn.prefix) end = index + 1;
  }
  return end === null ? null : { after: end };
}

function prefixOf(ledger, turn, place) {
  if (turn.prefix === undefined) return null;
  if (turn.break === "first") return fact("Cached prefix", "none: the first prompt of this ledger");
  if (turn.break === "resumed") return fact("Cached prefix", "unknown: the prompt before it was made in another process");
  const end = prefixEnd(ledger, turn, place);
  const where = !end ? "" : end.within ? ", inside the prompts" : end.after === 0 ? ", right after the prompts" : `, after item ${expand(turn.kept)[end.after - 1]}`;
  return fact("Cached prefix", `${plural(turn.prefix, "token")} reused`,
    turn.break ? el("span", { class: "warn" }, `; broke${where}: ${words(turn.break)}`) : "; it did not break");
}

function headFacts(ledger, turn, place) {
  // output = input - dropped - compacted + injected
  const injected = turn.unsent || turn.in === undefined ? 0 : turn.out + (turn.droppedTokens ?? 0) + (turn.compactedTokens ?? 0) - turn.in;
  return el("dl", { class: "facts head" },
    fact("Tokens", flow(turn), el("span", { class: "dim" }, !turn.budget ? " (no budget)" : turn.used !== undefined ? "" : ` of ${count(turn.budget)}${turn.unsent ? "" : `, ${budgetUsed(turn)}`}`)),
    turn.used !== undefined ? fact("Messages", `${count(turn.used)} of their ${count(turn.budget)}`, el("span", { class: "dim" }, `, ${budgetUsed(turn)}`)) : null,
    fact("Events", turn.eventsIn === undefined ? `unknown → ${count(turn.eventsOut)}` : `${count(turn.eventsIn)} → ${count(turn.eventsOut)}`),
    turn.dropped ? fact("Dropped", plural(turn.dropped, "item"), el("span", { class: "dim" }, `, ${plural(turn.droppedTokens, "token")}`)) : null,
    turn.compacted ? fact("Compacted", plural(turn.compacted, "item"), el("span", { class: "dim" }, `, ${plural(turn.compactedTokens, "token")}`)) : null,
    turn.window ? fact("Model window", `${count(turn.window)} tokens`, turn.unsent ? null : el("span", { class: "dim" }, `, ${percent(turn.out ?? 0, turn.window)} full`)) : null,
    injected > 0 ? fact("Injected", plural(injected, "token"), el("span", { class: "dim" }, ", by policies")) : null,
    turn.fixed !== undefined ? fact("Fixed", `${count(turn.fixed)} tokens`) : null,
    prefixOf(ledger, turn, place),
    turn.cost !== undefined ? fact("Input cost", `$${turn.cost.toPrecision(3)}`, el("span", { class: "dim" }, " estimated by list price")) : null,
    turn.inputUnknown ? fact("Input", "unknown: the messages before the reduction could not be read") : null,
    fact("Counted", `${turn.method ?? "unknown"}${turn.encoding ? `, ${turn.encoding}` : ""}`));
}

function kindsTable(turn) {
  const parts = [...(turn.kinds ?? [])].sort(([name], [otherName]) => kind(name).rank - kind(otherName).rank);
  if (!parts.length) return el("p", { class: "note" }, turn.unsent ? "Nothing was sent." : "The spans do not record the kinds of tokens in the prompt.");
  return el("div", { class: "filled" }, fillBar(turn),
    el("ul", { class: "parts", "aria-label": "What filled the budget" }, parts.map(([name, tokens]) => el("li", {}, kindLabel(name), " ", el("b", {}, count(tokens)))),
      ceiling(turn) > turn.out ? el("li", { class: "dim" }, "free ", el("b", {}, count(ceiling(turn) - turn.out))) : null, el("li", { class: "dim" }, "tokens")));
}

function promptsOf(turn, texts) {
  if (!turn.prompts?.length) return null;
  const line = (source, tokens) => [foreign(source), el("span", { class: "dim" }, `, ${plural(tokens, "token")}`)];
  return el("section", {}, el("h3", {}, "Prompts"), el("ul", { class: "prompts" }, turn.prompts.map(([source, tokens], index) => el("li", {},
    (turn.said?.[index] ?? null) === null ? line(source, tokens) : el("details", {}, el("summary", {}, line(source, tokens)), captured(texts[turn.said[index]]))))));
}

function captured(entry) {
  if (!entry) return el("p", { class: "note" }, "Not captured.");
  const [text, whole] = entry;
  return [foreign(text, "div", { class: "text", tabindex: "0", role: "region", "aria-label": "Captured text" }),
    whole ? el("p", { class: "note" }, `Truncated: showing ${count(text.length)} of ${count(whole)} characters.`) : null];
}

// A table that compares this turn among the variants of a replay.
function variantsOf(ledgers, active, number, open) {
  if (ledgers.length < 2) return null;
  const rows = ledgers.map((ledger) => {
    const turn = ledger.turn(number);
    const name = el("button", { type: "button", class: "link", "aria-current": ledger === active ? "true" : null, onclick: () => open(ledger) }, ledger.name);
    if (!turn) return el("tr", {}, cell("name", name), el("td", { colspan: "6", class: "dim" }, "this turn was not recorded"));
    return el("tr", { class: ledger === active ? "here" : "" }, cell("name", name), cell("number", count(turn.out)),
      cell("number", turn.budget ? count(turn.budget) : "–"), cell("number", turn.budget && !turn.unsent ? budgetUsed(turn) : "–"),
      cell("number", count(turn.dropped ?? 0)), cell("number", count(turn.prefix)),
      cell("", ledger.marks(turn).map((mark) => el("span", { class: `mark ${mark}`, title: MARKS[mark].label, role: "img", "aria-label": MARKS[mark].label }, MARKS[mark].symbol))));
  });
  return el("section", {}, el("h3", {}, "Side by side"), simpleTable("This turn in each variant",
    [["Variant", "name"], ["Tokens", "number"], ["Budget", "number"], ["Used", "number"], ["Items dropped", "number"], ["Reused prefix, tokens", "number"], ["Marks", ""]], rows));
}
