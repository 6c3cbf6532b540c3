// A ledger's turns as stacked bars with a line for the budget, on a canvas. Focusable and readable elements lie above it.

const EDGE = { left: 54, right: 10, top: 6, bottom: 22 };
const LANE = 13;

const short = (tokens) => (tokens >= 1e6 ? `${+(tokens / 1e6).toFixed(1)}M` : tokens >= 1e3 ? `${+(tokens / 1e3).toFixed(1)}k` : `${tokens}`);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function ticks(top, wanted) {
  const rough = top / wanted, magnitude = 10 ** Math.floor(Math.log10(rough || 1));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * magnitude).find((step) => step >= rough && Number.isInteger(step)) ?? 1;
  return Array.from({ length: Math.floor(top / step) + 1 }, (_, index) => index * step);
}

// Strokes of a repeating tile: patterns distinguish neighbors without color.
const TILE = 6;
const DOWN = [[3, 0, 3, 6]], ACROSS = [[0, 3, 6, 3]], RISING = [[-1, 1, 1, -1], [0, 6, 6, 0], [5, 7, 7, 5]], FALLING = RISING.map(([x, y, to, down]) => [x, 6 - y, to, 6 - down]);
const HATCHES = {
  vertical_line: [DOWN], horizontal_line: [ACROSS], cross: [DOWN, ACROSS], right_diagonal_line: [RISING], diagonal_cross: [RISING, FALLING], criss_cross: [RISING, FALLING],
  dot: [[[2, 3, 4, 3]]],
};
const tiles = new Map();

function hatch(name) {
  if (!tiles.has(name)) {
    const tile = el("canvas", { width: TILE, height: TILE }), draw = tile.getContext("2d");
    draw.strokeStyle = name.endsWith("s_cross") || name.startsWith("diagonal") ? "#fff9" : "#0006";
    draw.lineWidth = name === "dot" ? 2 : 1;
    for (const [x, y, to, down] of HATCHES[name].flat()) line(draw, [[x, y], [to, down]]);
    tiles.set(name, draw.createPattern(tile, "repeat"));
  }
  return tiles.get(name);
}

function line(draw, points) {
  draw.beginPath();
  for (const [x, y] of points) draw.lineTo(x, y);
  draw.stroke();
}

class Chart {
  constructor(ledger, { height, kinds, most, own, marks, window, on }) {
    Object.assign(this, { ledger, height, kinds, most, own, lanes: marks, window, on });
    this.canvas = el("canvas", { class: "canvas", "aria-hidden": "true" });
    this.cursor = el("div", { class: "cursor", role: "option", id: `turn-of-${ledger.number}`, "aria-selected": "true" });
    this.layer = el("div", {
      class: "layer", role: "listbox", tabindex: "0", "aria-label": `Turns of ${ledger.name}`, "aria-orientation": "horizontal",
      "aria-activedescendant": this.cursor.id,
      onkeydown: (event) => on.key(ledger, event),
      onfocus: () => on.focus(ledger),
      onpointermove: (event) => on.hover(ledger, this.under(event), event),
      onpointerleave: () => on.hover(null),
      onclick: (event) => on.open(ledger, this.under(event)),
    }, this.cursor);
    this.box = el("div", { class: "chart", style: { height: `${height}px` } }, this.canvas, this.layer);
  }

  get width() {
    return this.box.clientWidth;
  }

  x(number) {
    const { from, to } = this.window;
    return EDGE.left + ((number - from) / (to - from)) * (this.width - EDGE.left - EDGE.right);
  }

  under(event) {
    const { from, to } = this.window;
    const place = event.clientX - this.box.getBoundingClientRect().left - EDGE.left;
    return this.ledger.nearest(Math.round(from + (place / (this.width - EDGE.left - EDGE.right)) * (to - from)));
  }

  point(turn, active) {
    const left = Math.max(EDGE.left, this.x(turn.n - 0.5)), right = Math.min(this.width - EDGE.right, this.x(turn.n + 0.5));
    const wide = Math.max(right - left, 4);
    this.cursor.style.transform = `translateX(${(left + right - wide) / 2}px)`;
    this.cursor.style.width = `${wide}px`;
    this.cursor.classList.toggle("active", active);
    this.cursor.classList.toggle("aside", right < left);
    this.cursor.setAttribute("aria-label", this.ledger.sentence(turn));
    this.cursor.setAttribute("aria-posinset", this.ledger.places.get(turn.n) + 1);
    this.cursor.setAttribute("aria-setsize", this.ledger.turns.length);
  }

  move() {
    if (this.drawn) this.draw();
  }

  resize() {
    if (this.drawn && this.drawn !== this.width && this.width) this.draw();
  }

  turnTicks() {
    const { from, to } = this.window, wanted = Math.max(2, Math.floor((this.width - EDGE.left) / 70));
    const step = Math.max(1, ticks(to - from, wanted)[1] ?? 1);
    const first = Math.ceil(Math.ceil(from) / step) * step;
    return Array.from({ length: Math.max(0, Math.floor((to - first) / step) + 1) }, (_, index) => first + index * step);
  }

  // In this order: grid, gaps, bars, outlines of overflows, the budget's line, marks; labels are at the edges.
  draw() {
    const { width, height, canvas } = this, sharp = devicePixelRatio || 1, draw = canvas.getContext("2d");
    if (!width) return;
    Object.assign(canvas, { width: Math.round(width * sharp), height: Math.round(height * sharp) });
    draw.scale(sharp, sharp);
    const ink = css("--dim"), grid = css("--line"), right = width - EDGE.right, bottom = height - EDGE.bottom;
    const inner = bottom - EDGE.top, lanes = this.lanes.length * LANE + (this.lanes.length ? 4 : 0);
    const top = (Math.max(1, this.most) * 1.04 * inner) / (inner - lanes);
    this.y = (tokens) => bottom - (tokens / top) * inner;
    Object.assign(draw, { font: `11px ${css("--sans")}`, textBaseline: "middle", textAlign: "right", fillStyle: ink, strokeStyle: grid, lineWidth: 1 });
    for (const tick of ticks(this.most * 1.04, Math.max(2, Math.floor((inner - lanes) / 34)))) {
      const y = Math.round(this.y(tick)) + 0.5;
      line(draw, [[EDGE.left, y], [right, y]]);
      draw.fillText(short(tick), EDGE.left - 7, y);
    }
    draw.textAlign = "center";
    for (const tick of this.turnTicks()) draw.fillText(tick, this.x(tick), bottom + 12);
    draw.save();
    draw.beginPath();
    draw.rect(EDGE.left, 0, right - EDGE.left, bottom);
    draw.clip();
    const { turns } = this.ledger, from = this.ledger.place(this.window.from - 1), to = this.ledger.place(this.window.to + 1);
    const seen = turns.slice(from, to);
    this.gaps(draw, turns[from - 1]?.n ?? -1, seen, bottom);
    this.bars(draw, this.binned(seen));
    this.ceilings(draw, seen);
    for (const [lane, mark] of this.lanes.entries()) {
      draw.fillStyle = css(`--mark-${mark}`);
      let free = -Infinity;
      for (const turn of seen) {
        // Marks that would cover each other are drawn as one.
        const x = this.x(turn.n);
        if (x < free || !this.ledger.marks(turn).includes(mark)) continue;
        draw.fillText(MARKS[mark].symbol, x, EDGE.top + (lane + 0.5) * LANE);
        free = x + 2;
      }
    }
    draw.restore();
    this.drawn = width;
    this.box.dataset.drawn = "";
  }

  // If several turns share a pixel, the one with the most tokens is drawn.
  binned(turns) {
    if (this.x(1) - this.x(0) >= 1) return turns;
    const bins = new Map();
    for (const turn of turns) {
      const pixel = Math.round(this.x(turn.n - 0.5)), highest = bins.get(pixel);
      if (!highest || Math.max(turn.out ?? 0, turn.needs ?? 0) > Math.max(highest.out ?? 0, highest.needs ?? 0)) bins.set(pixel, turn);
    }
    return [...bins.values()];
  }

  // Wide bars have gaps between them, and patterns.
  bars(draw, turns) {
    const slot = this.x(1) - this.x(0), gap = slot < 8 ? 0 : slot * 0.1, alarm = css("--alarm");
    // Narrow bars end at whole pixels; fractions of pixels would show the background as stripes.
    const edge = (number) => (gap ? this.x(number) : Math.round(this.x(number)));
    for (const turn of turns) {
      const left = edge(turn.n - 0.5) + gap, wide = Math.max(1, edge(turn.n + 0.5) - gap - left), kinds = new Map(turn.kinds);
      let floor = 0;
      for (const name of this.kinds) {
        const { color, pattern } = kind(name), from = this.y(floor), to = this.y(floor += kinds.get(name) ?? 0);
        if (from === to) continue;
        for (const fill of [color, slot > 5 && pattern ? hatch(pattern) : null]) if (fill) {
          draw.fillStyle = fill;
          draw.fillRect(left, to, wide, from - to);
        }
      }
      if (turn.needs > floor) this.outline(draw, turn, left, wide, floor, alarm);
    }
  }

  // The needed tokens of an overflow, as an outline. If they exceed the chart, it is open at the top and has a label.
  outline(draw, turn, left, wide, floor, alarm) {
    const cut = turn.needs > this.most, top = this.y(Math.min(turn.needs, this.most * 1.04)), bottom = this.y(floor);
    Object.assign(draw, { strokeStyle: alarm, lineWidth: 1 });
    draw.setLineDash([3, 2]);
    line(draw, [...(cut ? [] : [[left + wide, top]]), [left, top], [left, bottom], [left + wide, bottom], [left + wide, top]]);
    draw.setLineDash([]);
    draw.fillStyle = alarm;
    if (cut && wide > 30) draw.fillText(`↑ ${short(turn.needs)}`, left + wide / 2, top + 8);
  }

  ceilings(draw, turns) {
    Object.assign(draw, { strokeStyle: css("--ink"), lineWidth: 1.5 });
    draw.setLineDash([5, 3]);
    draw.beginPath();
    // One line for all turns with the same budget: dashes of many short lines are slow.
    let before = null, most = null;
    for (const turn of [...turns, null]) {
      const next = turn && ceiling(turn), joins = before !== null && turn?.n === before + 1;
      if (most && !(joins && next === most)) draw.lineTo(this.x(before + 0.5), this.y(most));
      if (next && !(joins && next === most)) {
        if (joins && most) draw.lineTo(this.x(turn.n - 0.5), this.y(next));
        else draw.moveTo(this.x(turn.n - 0.5), this.y(next));
      }
      before = turn?.n ?? null;
      most = next;
    }
    draw.stroke();
    draw.setLineDash([]);
  }

  // Turns that were not recorded are hatched.
  gaps(draw, before, turns, bottom) {
    for (const { n } of turns) {
      if (n > before + 1) {
        const from = Math.max(EDGE.left, this.x(before + 0.5)), size = [from, EDGE.top, this.x(n - 0.5) - from, bottom - EDGE.top];
        draw.globalAlpha = 0.3;
        for (const fill of [css("--line"), hatch("right_diagonal_line")]) {
          draw.fillStyle = fill;
          draw.fillRect(...size);
        }
        draw.globalAlpha = 1;
      }
      before = Math.max(before, n);
    }
  }
}
