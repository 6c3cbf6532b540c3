// The list of conversations, if there are several.

function sideRow(conversation, index) {
  const sums = conversation.ledgers.map((ledger) => ledger.totals());
  const turns = Math.max(...conversation.ledgers.map((ledger) => ledger.turns.length));
  const marks = {};
  for (const { marks: counts } of sums) for (const [mark, many] of Object.entries(counts)) marks[mark] = (marks[mark] ?? 0) + many;
  const tally = Object.keys(MARKS).filter((mark) => marks[mark]).map((mark) => ({ mark, said: `${MARKS[mark].label} × ${count(marks[mark])}` }));
  return { index, name: conversation.name, turns, variants: conversation.ledgers.length, marks, tally, left: sums.reduce((sum, { left }) => sum + left, 0), conversation };
}

function sideList(conversations, choose) {
  let rows = conversations.map(sideRow);
  const table = new Rows({
    label: "Conversations", height: 62, lines: 400, rows, open: (row) => row && choose(row.index), marked: (row) => (row.conversation.shown ? "shown" : ""),
    columns: [{
      title: "Conversation", css: "c-conversation", cell: (row) => [
        foreign(row.name, "div", { class: "name" }),
        el("div", { class: "dim small cut" }, [plural(row.turns, "turn"), row.variants > 1 ? `${row.variants} variants` : null, row.conversation.aside].filter(Boolean).join(", ")),
        el("div", { class: "dim small cut", title: row.tally.map(({ said }) => said).join(", ") }, row.tally.map(({ mark, said }) => el("span", { class: "tally" },
          el("span", { class: `mark ${mark}`, "aria-hidden": "true" }, MARKS[mark].symbol), said))),
      ],
    }],
  });
  const orders = {
    recorded: ["as recorded", (row, nextRow) => row.index - nextRow.index],
    left: ["most dropped", (row, nextRow) => nextRow.left - row.left || row.index - nextRow.index],
    overflow: ["most overflows", (row, nextRow) => (nextRow.marks.overflow ?? 0) - (row.marks.overflow ?? 0) || row.index - nextRow.index],
    turns: ["most turns", (row, nextRow) => nextRow.turns - row.turns || row.index - nextRow.index],
  };
  const filter = el("input", { type: "search", placeholder: "Filter", "aria-label": "Filter conversations", autocomplete: "off" });
  const order = el("select", { "aria-label": "Order of conversations" }, Object.entries(orders).map(([name, [label]]) => el("option", { value: name }, label)));
  const selected = () => {
    const wanted = filter.value.trim().toLocaleLowerCase();
    return rows.filter(({ name, conversation }) => `${name}\n${conversation.id ?? ""}\n${conversation.file ?? ""}`.toLocaleLowerCase().includes(wanted)).sort(orders[order.value][1]);
  };
  filter.addEventListener("input", () => table.show(selected()));
  order.addEventListener("change", () => table.show(selected()));
  const wide = matchMedia("(min-width: 900px)");
  const title = () => `Conversations (${count(rows.length)})`, summary = el("summary", {}, title());
  const fold = el("details", { open: wide.matches }, summary, el("div", { class: "controls" }, filter, order), table.box);
  wide.addEventListener("change", () => { fold.open = wide.matches; });
  const update = () => {
    rows = conversations.map(sideRow);
    refill(summary, title());
    table.update(selected());
  };
  return { node: fold, table, fold, wide, update };
}
