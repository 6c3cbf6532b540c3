// A table of any length; only the visible rows are in the document.

let tables = 0;

class Rows {
  constructor({ label, columns, rows, height = 28, open, name, lines = 14, marked, follow = false }) {
    Object.assign(this, { columns, rows, height, open, name, marked, follow, active: -1, id: `rows${++tables}` });
    this.head = el("div", { class: "row head", role: "row", "aria-rowindex": "1" },
      columns.map(({ title, css, hint }) => el("div", { role: "columnheader", class: css ?? "", title: hint }, title)));
    this.inner = el("div", { class: "inner", role: "rowgroup" });
    this.box = el("div", {
      class: "rows", role: "grid", tabindex: "0", "aria-label": label, "aria-readonly": "true",
      style: { "max-height": `${(lines + 1) * height + 2}px`, "--row": `${height}px` },
      onscroll: () => this.draw(), onkeydown: (event) => this.key(event),
    }, el("div", { role: "rowgroup", class: "headgroup" }, this.head), this.inner);
    this.inner.addEventListener("click", (event) => {
      const row = event.target.closest?.(".row");
      if (row) this.choose(Number(row.dataset.row), true);
    });
    this.watch = new ResizeObserver(() => this.draw());
    this.watch.observe(this.box);
    this.show(rows);
  }

  show(rows) {
    this.rows = rows;
    this.active = -1;
    this.box.removeAttribute("aria-activedescendant");
    this.box.setAttribute("aria-rowcount", rows.length + 1);
    this.inner.style.setProperty("height", `${rows.length * this.height}px`);
    this.box.scrollTop = 0;
    this.from = -1;
    this.draw();
  }

  // Shows changed rows in place: the selected row and the scroll position stay, except that the end stays the end.
  update(rows) {
    const atEnd = this.box.scrollTop + this.box.clientHeight >= this.box.scrollHeight - this.height;
    this.rows = rows;
    this.box.setAttribute("aria-rowcount", rows.length + 1);
    this.inner.style.setProperty("height", `${rows.length * this.height}px`);
    if (atEnd && this.follow) this.box.scrollTop = this.box.scrollHeight;
    this.draw(true);
  }

  draw(force = false) {
    const top = this.box.scrollTop;
    const from = Math.max(0, Math.floor(top / this.height) - 4);
    const to = Math.min(this.rows.length, Math.ceil((top + (this.box.clientHeight || 400)) / this.height) + 4);
    if (!force && from === this.from && to === this.to) return;
    Object.assign(this, { from, to });
    refill(this.inner, this.rows.slice(from, to).map((row, index) => this.row(row, from + index)));
  }

  row(row, index) {
    return el("div", {
      class: `row ${this.marked?.(row) ?? ""}`, role: "row", id: `${this.id}-${index}`, "data-row": index,
      "aria-rowindex": index + 2, "aria-selected": String(index === this.active),
      style: { transform: `translateY(${index * this.height}px)` },
    }, this.columns.map(({ cell, css }) => el("div", { role: "gridcell", class: css ?? "" }, cell(row, index))));
  }

  key(event) {
    const page = Math.max(1, Math.floor(this.box.clientHeight / this.height) - 2);
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.key in moves) this.choose(Math.max(0, Math.min(this.rows.length - 1, this.active + moves[event.key])));
    else if (event.key === "Enter" || event.key === " ") this.open?.(this.rows[this.active], this.active);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  choose(index, open = false) {
    if (!(index in this.rows)) return;
    this.active = index;
    const top = index * this.height, room = this.box.clientHeight - this.head.offsetHeight;
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    else if (top + this.height > this.box.scrollTop + room) this.box.scrollTop = top + this.height - room;
    this.draw(true);
    this.box.setAttribute("aria-activedescendant", `${this.id}-${index}`);
    if (open) this.open?.(this.rows[index], index);
  }
}
