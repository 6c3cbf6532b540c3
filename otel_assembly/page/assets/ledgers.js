// Ledgers as the spans tell them: where an item was after each turn, and what is not known.

function expand(runs) {
  const found = [];
  for (const run of runs ?? []) {
    const [first, last = first] = run.split("-").map(Number);
    for (let item = first; item <= last; item++) found.push(item);
  }
  return found;
}

function runsOf(ordinals) {
  const found = [];
  for (const item of ordinals.sort((one, other) => one - other)) {
    if (found.length && item === found.at(-1)[1] + 1) found.at(-1)[1] = item;
    else found.push([item, item]);
  }
  return found.map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`));
}

const size = (runs) => (runs ?? []).reduce((sum, run) => {
  const [first, last = first] = run.split("-").map(Number);
  return sum + last - first + 1;
}, 0);

// The last entry that holds at a place; entries are [place, value], by place.
function at(entries, place) {
  let low = 0, high = (entries ?? []).length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (entries[middle][0] <= place) low = middle + 1;
    else high = middle;
  }
  return low ? entries[low - 1] : null;
}

const MARKS = {
  overflow: { symbol: "✖", label: "overflow", shape: "x" },
  halt: { symbol: "■", label: "halt", shape: "square" },
  error: { symbol: "●", label: "policy error", shape: "circle" },
  alert: { symbol: "▲", label: "alert", shape: "triangle" },
  compacted: { symbol: "◆", label: "compacted", shape: "diamond" },
  dropped: { symbol: "▼", label: "dropped", shape: "inverted_triangle" },
};

class Ledger {
  constructor(raw, number, twins) {
    this.raw = raw;
    this.number = number;
    this.turns = raw.turns;
    this.places = new Map(raw.turns.map((turn, place) => [turn.n, place]));
    this.items = new Map(raw.items.map((item) => [item.o, item]));
    this.name = (raw.name ?? "unnamed assembler") + (twins ? ` (${twins + 1})` : "");
    this.first = raw.turns.length ? raw.turns[0].n : 0;
    this.last = raw.turns.reduce((most, turn) => Math.max(most, turn.n), this.first);
    this.ordered = [...this.turns.keys()].sort((one, other) => this.turns[one].n - this.turns[other].n);
  }

  turn(number) {
    return this.turns[this.places.get(number)];
  }

  // The recorded turn that is nearest to a number.
  nearest(number) {
    let best = null;
    for (const turn of this.turns) if (best === null || Math.abs(turn.n - number) < Math.abs(best - number)) best = turn.n;
    return best;
  }

  // The recorded turn so many before or after another one.
  step(number, by) {
    const numbers = this.numbers ??= this.ordered.map((place) => this.turns[place].n);
    const here = numbers.indexOf(this.nearest(number));
    return numbers[Math.max(0, Math.min(numbers.length - 1, here + by))];
  }

  // Where an item was after a turn: null before it came.
  state(item, place) {
    const entry = at(item.h, place);
    if (!entry) return null;
    const since = this.turns[entry[0]].n;
    if (entry[1] < 0) return { in: true, word: "in prompt", since };
    const [reason, policy, index, outcome] = this.raw.causes[entry[1]];
    return { in: false, word: reason === null ? "left" : outcome, reason, policy, index, since };
  }

  tokens(item, place) {
    return at(item.n, place)?.[1] ?? null;
  }

  // Runs of turns over which an item's state is the same, gaps between recorded turns included as unknown.
  stretches(item) {
    const found = [];
    let before = null;
    for (const place of this.ordered) {
      const turn = this.turns[place];
      const state = this.state(item, place);
      const from = before === null ? this.first : before + 1;
      if (before !== null && turn.n > from) found.push({ from, to: turn.n - 1, state: undefined });
      const last = found.at(-1);
      const key = state && [state.word, state.reason, state.policy].join();
      if (last && last.key === key && last.state !== undefined) last.to = turn.n;
      else found.push({ from: turn.n, to: turn.n, state, key });
      before = turn.n;
    }
    return found.filter((one) => one.state !== null);
  }

  marks(turn) {
    return turn.marks ??= Object.keys(MARKS).filter((mark) =>
      mark === "dropped" ? turn.left || turn.refused
        : mark === "compacted" ? turn.replaced
          : (turn.signals ?? []).some((signal) => signal.what === mark));
  }

  totals() {
    return this.sums ??= this.turns.reduce((sums, turn) => {
      for (const mark of this.marks(turn)) sums.marks[mark] = (sums.marks[mark] ?? 0) + 1;
      sums.left += size(turn.left) + size(turn.refused);
      sums.breaks += turn.break !== undefined && turn.break !== "first" ? 1 : 0;
      sums.unsent += turn.unsent ? 1 : 0;
      if (turn.budget) sums.budgets.add(turn.budget);
      sums.peak = Math.max(sums.peak, turn.out ?? 0);
      return sums;
    }, { marks: {}, left: 0, breaks: 0, unsent: 0, peak: 0, budgets: new Set() });
  }

  // A turn in one sentence, for a reader's ear and for a tooltip.
  sentence(turn) {
    const said = [`Turn ${turn.n}`];
    if (turn.unsent) said.push("nothing was sent");
    else if (turn.budget) said.push(`${count(turn.out)} of ${count(turn.budget)} tokens, ${percent(turn.out, turn.budget)}`);
    else said.push(`${count(turn.out)} tokens, no budget`);
    const gone = size(turn.left) + size(turn.refused);
    if (gone) said.push(`${plural(gone, "item")} dropped`);
    if (turn.replaced) said.push(`${plural(size(turn.replaced), "item")} compacted`);
    if (turn.break && turn.break !== "first") said.push(`cached prefix broke, ${words(turn.break)}`);
    for (const mark of this.marks(turn)) if (!["dropped", "compacted"].includes(mark)) said.push(MARKS[mark].label);
    if (turn.partial) said.push("not all spans are here");
    return said.join("; ");
  }
}

const words = (name) => String(name).replaceAll("_", " ");

const REASONS = {
  not_conversation: "is not part of the conversation",
  outside_window: "lies outside the window",
  over_budget: "did not fit the budget",
  below_floor: "gave way to a reserved floor",
  low_rank: "ranked too low",
  orphaned_tool_result: "is a tool result whose call is gone",
  orphaned_tool_call: "is a tool call without a result",
  duplicate: "repeats another item",
  forbidden_scope: "is out of scope",
  stale: "has a newer version",
  compacted: "is covered by a summary",
  withdrawn: "is no longer offered by its source",
  policy: "was taken by a policy that gave no reason",
  policy_error: "was taken by a policy that failed",
};

function why(state) {
  if (state.in) return "in the prompt";
  if (state.reason === null) return "not in the prompt; no span that is here says why";
  const verb = REASONS[state.reason] ?? words(state.reason);
  return `${state.word}: ${verb}${state.policy ? ` (${state.reason}, ${state.policy})` : ` (${state.reason})`}`;
}
