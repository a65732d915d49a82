// A layers x heads grid: click, drag or keys set heads; the server owns the truth.
//
// Each stroke is an operation {seq, cells, on}. Operations that the server has not confirmed
// (seq > data.ack) are kept, drawn on top of what the server sent, and sent again with the next
// stroke, so quick strokes are neither lost nor seen to flicker.

export default function (component) {
  const { data, parentElement, setTriggerValue } = component;
  const grid = (parentElement.headGrid ??= new HeadGrid(parentElement));
  grid.send = (ops) => setTriggerValue("paint", { ops });
  grid.show(data);
  return () => grid.stop();
}

class HeadGrid {
  constructor(parent) {
    this.root = document.createElement("div");
    this.root.className = "head-grid";
    parent.appendChild(this.root);
    this.shapeKey = null;
    this.pending = [];
    this.stroke = null;
    this.at = [0, 0];
    this.end = () => this.finish();
    window.addEventListener("pointerup", this.end);
    window.addEventListener("pointercancel", this.end);
  }

  stop() {
    window.removeEventListener("pointerup", this.end);
    window.removeEventListener("pointercancel", this.end);
    const parent = this.root.parentNode;
    if (parent) { delete parent.headGrid; this.root.remove(); }
  }

  // -- what the server sent ------------------------------------------------------------------

  show(data) {
    this.data = data;
    this.pending = this.pending.filter((op) => op.seq > data.ack);
    this.seq = Math.max(this.seq ?? 0, data.ack);
    const key = JSON.stringify([data.on.map((r) => r.length), data.head_labels, data.layer_labels, data.mode]);
    if (key !== this.shapeKey) { this.build(data); this.shapeKey = key; }
    this.on = data.on.map((row) => row.slice());
    for (const op of this.pending) this.apply(op);
    if (this.stroke) this.apply(this.stroke);
    this.table.setAttribute("aria-label", data.label);
    this.table.setAttribute("aria-readonly", String(data.disabled));
    this.root.classList.toggle("disabled", data.disabled);
    this.legend();
    this.paintAll();
  }

  build(data) {
    this.root.replaceChildren();
    const widest = Math.max(...data.on.map((row) => row.length));
    this.table = element("div", { className: "table", role: "grid", "aria-multiselectable": "true" });
    this.table.style.setProperty("--columns", widest);
    this.table.append(this.headings(widest));
    this.cells = data.on.map((row, layer) => {
      const line = element("div", { className: "row", role: "row" });
      line.append(this.layerButton(layer));
      const cells = row.map((_, head) => {
        const cell = element("div", { className: "cell", role: "gridcell", tabIndex: -1 });
        cell.dataset.layer = layer;
        cell.dataset.head = head;
        line.append(cell);
        return cell;
      });
      this.table.append(line);
      return cells;
    });
    this.at = [Math.min(this.at[0], data.on.length - 1), 0];
    this.status = element("div", { className: "status", role: "status", "aria-live": "polite" });
    this.legendBox = element("div", { className: "legend", "aria-hidden": "true" });
    this.root.append(this.table, this.legendBox, this.status);
    this.listen();
  }

  headings(widest) {
    const line = element("div", { className: "row head", role: "row" });
    line.append(element("div", { className: "corner", role: "columnheader", textContent: "layer \\ head" }));
    for (let h = 0; h < widest; h++) {
      line.append(element("div", { className: "heading", role: "columnheader", textContent: this.data.head_labels[h] }));
    }
    return line;
  }

  layerButton(layer) {
    const box = element("div", { className: "rowheader", role: "rowheader" });
    const name = this.data.layer_labels[layer];
    const verb = this.data.mode === "prune" ? "prune or restore" : "choose or clear";
    const title = `Layer ${name}: ${verb} all its heads`;
    const button = element("button", { type: "button", textContent: name, title, "aria-label": title });
    button.onclick = () => this.setLayer(layer);
    box.append(button);
    return box;
  }

  // -- drawing -------------------------------------------------------------------------------

  paintAll() {
    this.cells.forEach((row, layer) => row.forEach((_, head) => this.paint(layer, head)));
    const [layer, head] = this.at;
    this.rove(layer, head, false);
  }

  paint(layer, head) {
    const cell = this.cells[layer][head];
    const shade = this.data.shades?.[layer]?.[head];
    const rgb = shade == null ? null : colour(this.data.palette, shade);
    const on = this.on[layer][head];
    const pruned = this.data.mode === "prune" ? !on : this.data.pruned?.[layer]?.[head] === true;
    cell.style.setProperty("--shade", rgb ? `rgb(${rgb.join()})` : "var(--st-secondary-background-color)");
    cell.style.setProperty("--ink", rgb ? ink(rgb) : "var(--st-text-color)");
    cell.classList.toggle("pruned", pruned);
    cell.classList.toggle("chosen", this.data.mode === "select" && on);
    cell.setAttribute("aria-selected", String(on));
    cell.setAttribute("aria-label", this.describe(layer, head));
    cell.title = this.describe(layer, head);
  }

  describe(layer, head) {
    const on = this.on[layer][head];
    const state = this.data.mode === "prune" ? (on ? "kept" : "pruned") : on ? "chosen" : "not chosen";
    const hint = this.data.hints?.[layer]?.[head];
    return `Layer ${this.data.layer_labels[layer]}, head ${this.data.head_labels[head]}: ${state}${hint ? " · " + hint : ""}`;
  }

  legend() {
    this.legendBox.replaceChildren();
    const { legend, palette, mode } = this.data;
    if (legend) {
      const bar = element("span", { className: "bar" });
      bar.style.background = `linear-gradient(to right, ${palette.map((c) => `rgb(${c.join()})`).join()})`;
      this.legendBox.append(text(legend.title), text(legend.low), bar, text(legend.high));
    }
    if (mode === "prune" || this.data.pruned) {
      this.legendBox.append(element("span", { className: "cell pruned sample" }), text("pruned"));
    }
  }

  // -- hands and keys ------------------------------------------------------------------------

  listen() {
    this.table.addEventListener("pointerdown", (event) => {
      const at = place(event.target);
      if (!at || event.button !== 0 || this.data.disabled) return;
      event.preventDefault();
      event.target.releasePointerCapture?.(event.pointerId);
      this.rove(...at, true);
      this.begin(at, !this.on[at[0]][at[1]]);
    });
    this.table.addEventListener("pointermove", (event) => {
      const moves = event.getCoalescedEvents?.() ?? [event];
      for (const move of this.stroke ? moves : []) {
        const at = place(this.root.getRootNode().elementFromPoint(move.clientX, move.clientY));
        if (at) this.extend(at);
      }
    });
    const tell = (event) => {
      const at = place(event.target);
      if (at) this.status.textContent = this.describe(...at);
    };
    this.table.addEventListener("pointerover", tell);
    this.table.addEventListener("focusin", tell);
    this.table.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    const at = place(event.target);
    if (!at) return;
    const [layer, head] = at;
    if ((event.key === " " || event.key === "Enter") && !this.data.disabled) {
      event.preventDefault();
      this.begin(at, !this.on[layer][head]);
      this.finish();
      return;
    }
    const last = this.cells[layer].length - 1;
    const to = {
      ArrowUp: [layer - 1, head], ArrowDown: [layer + 1, head],
      ArrowLeft: [layer, head - 1], ArrowRight: [layer, head + 1],
      Home: [event.ctrlKey ? 0 : layer, 0], End: [event.ctrlKey ? this.cells.length - 1 : layer, last],
    }[event.key];
    if (!to) return;
    event.preventDefault();
    event.stopPropagation();
    const row = Math.min(Math.max(to[0], 0), this.cells.length - 1);
    const column = Math.min(Math.max(to[1], 0), this.cells[row].length - 1);
    this.rove(row, column, true);
    if (event.shiftKey && !this.data.disabled) {
      // shift + arrow paints along with the state of the head it came from
      this.begin([row, column], this.on[layer][head]);
      this.finish();
    }
  }

  rove(layer, head, focus) {
    const [l, h] = this.at;
    if (this.cells[l]?.[h]) this.cells[l][h].tabIndex = -1;
    this.at = [layer, head];
    this.cells[layer][head].tabIndex = 0;
    if (focus) this.cells[layer][head].focus({ preventScroll: false });
  }

  // -- strokes -------------------------------------------------------------------------------

  begin(at, on) {
    if (this.data.mode === "select" && !this.data.multi && on) {
      this.on.forEach((row) => row.fill(false));
      this.paintAll();
    }
    this.stroke = { seq: ++this.seq, cells: [], on };
    this.extend(at);
  }

  extend([layer, head]) {
    const stroke = this.stroke;
    if (stroke.cells.some(([l, h]) => l === layer && h === head)) return;
    if (this.data.mode === "select" && !this.data.multi && stroke.cells.length) return;
    stroke.cells.push([layer, head]);
    this.on[layer][head] = stroke.on;
    this.paint(layer, head);
    this.status.textContent = this.describe(layer, head);
  }

  finish() {
    if (!this.stroke) return;
    this.pending.push(this.stroke);
    this.stroke = null;
    this.send(this.pending);
  }

  setLayer(layer) {
    if (this.data.disabled || (this.data.mode === "select" && !this.data.multi)) return;
    const on = !this.on[layer].every(Boolean);
    this.begin([layer, 0], on);
    this.on[layer].forEach((_, head) => this.extend([layer, head]));
    this.finish();
  }

  apply(op) {
    if (this.data.mode === "select" && !this.data.multi && op.on) this.on.forEach((row) => row.fill(false));
    for (const [layer, head] of op.cells) {
      if (this.on[layer]?.[head] !== undefined) this.on[layer][head] = op.on;
    }
  }
}

function element(tag, { role, "aria-label": label, "aria-live": live, "aria-hidden": hidden,
  "aria-multiselectable": multi, ...properties } = {}) {
  const node = Object.assign(document.createElement(tag), properties);
  const attributes = { role, "aria-label": label, "aria-live": live, "aria-hidden": hidden, "aria-multiselectable": multi };
  for (const [name, value] of Object.entries(attributes)) if (value != null) node.setAttribute(name, value);
  return node;
}

const text = (content) => element("span", { textContent: content });

function place(node) {
  const cell = node?.closest?.(".table .cell");
  return cell ? [Number(cell.dataset.layer), Number(cell.dataset.head)] : null;
}

// linear between the two nearest stops; shade 0 to 1
function colour(palette, shade) {
  const x = Math.min(Math.max(shade, 0), 1) * (palette.length - 1);
  const i = Math.min(Math.floor(x), palette.length - 2);
  return palette[i].map((low, c) => Math.round(low + (palette[i + 1][c] - low) * (x - i)));
}

// black or white, whichever stands out more (WCAG relative luminance)
function ink([r, g, b]) {
  const linear = [r, g, b].map((v) => ((v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] > 0.179 ? "#000" : "#fff";
}
