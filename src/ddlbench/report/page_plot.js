// The plot of report.html: points on hover, filters, axes. No library, no network.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("plot-data").textContent);
  const plot = document.getElementById("plot"), tip = document.getElementById("plot-tip");
  const canvas = plot.querySelector("canvas"), pen = canvas.getContext("2d");
  const said = document.getElementById("plot-count");
  const texts = Object.fromEntries(data.texts.map(one => [one.name, one]));
  const numbers = Object.fromEntries(data.numbers.map(one => [one.name, one]));
  const textOf = (name, row) => texts[name].pool[texts[name].values[row]];
  const LEFT = 64, RIGHT = 12, TOP = 10, BOTTOM = 40, STRIP = 18, RADIUS = 4, REACH = 14;
  const LOG_FROM = 30;

  // Numbers as the tables have them: decimal units, two digits.
  const UNITS = {
    s: [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]],
    B: [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "bytes"]],
  };
  const short = value => value >= 9.95 || value === 0 ? Math.round(value).toLocaleString("en")
    : String(Number(value.toPrecision(2)));
  const shown = (value, unit) => {
    if (value === null) return "";
    if (value === 0) return "0";
    if (unit === "x") return value.toFixed(2);
    if (unit === "/s") return short(value) + "/s";
    if (!UNITS[unit]) return String(value);
    const [size, name] = UNITS[unit].find(([one]) => value >= one) || UNITS[unit].at(-1);
    return `${short(value / size)} ${name}`;
  };

  // Filters: of each text that has several values.
  const form = document.getElementById("plot-filters");
  const choose = (label, options, chosen) => {
    const box = document.createElement("label"), select = document.createElement("select");
    box.append(label + " ", select);
    for (const [value, text] of options) select.add(new Option(text, value));
    if (chosen) select.value = chosen;
    select.addEventListener("change", () => { filter(); draw(); });
    form.append(box);
    return select;
  };
  const filters = ["strategy", "network", "geometry", "dataset", "status"]
    .filter(name => texts[name].pool.length > 1)
    .map(name => [texts[name], choose(texts[name].label, [["", "all"],
      ...texts[name].pool.map((text, place) => [place, text])])]);
  const legend = document.getElementById("plot-legend");
  for (const name of texts.strategy.pool) {
    const entry = document.createElement("span"), swatch = document.createElement("i");
    swatch.style.background = data.colours[name];
    entry.append(swatch, name);
    legend.append(entry);
  }
  const known = data.numbers.filter(one => one.values.some(value => value !== null));
  const axes = known.map(one => [one.name, one.label]);
  if (!axes.length) { plot.hidden = true; return; }
  const of = name => axes.some(([one]) => one === name) ? name : axes[0][0];
  const vertical = choose("Up", axes, of("samples_per_s"));
  const across = choose("Across", axes, of("peak_memory_bytes"));

  // Rows of the table of configurations are in the order of the data.
  const table = document.getElementById("configurations");
  const lines = table.tBodies[0].rows;
  let rows = [], points = [], chosen = -1, pinned = false;
  const filter = () => {
    rows = [];
    for (let row = 0; row < data.count; row++) {
      const kept = filters.every(([text, select]) =>
        select.value === "" || text.values[row] === Number(select.value));
      if (kept) rows.push(row);
      if (lines[row]) lines[row].hidden = !kept;
    }
    chosen = -1; pinned = false; tip.hidden = true;
  };

  const scaleOf = (values, from, to) => {
    const low = values.reduce((a, b) => Math.min(a, b));
    const high = values.reduce((a, b) => Math.max(a, b));
    if (low > 0 && high / low > LOG_FROM) {
      const a = Math.log(low / 1.25), b = Math.log(high * 1.25), marks = [];
      const wide = high / low > 1e3;
      for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high) + 1; power++)
        for (const digit of wide ? [1] : [1, 2, 5]) marks.push(digit * 10 ** power);
      return { at: v => from + (to - from) * (Math.log(v) - a) / (b - a), log: true,
        marks: marks.filter(v => Math.log(v) >= a && Math.log(v) <= b) };
    }
    const top = high * 1.08 || 1, rough = top / 5, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find(one => one * power >= rough) * power;
    const marks = Array.from({ length: Math.floor(top / step) + 1 }, (_, i) => i * step);
    return { at: v => from + (to - from) * v / top, log: false, marks };
  };

  const draw = () => {
    const width = plot.clientWidth, height = canvas.clientHeight;
    const ratio = window.devicePixelRatio || 1, style = getComputedStyle(document.body);
    const [ink, grey, line] = ["--ink", "--grey", "--line"].map(v => style.getPropertyValue(v));
    canvas.width = width * ratio; canvas.height = height * ratio;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.font = "12px system-ui, sans-serif";
    const x = numbers[across.value], y = numbers[vertical.value];
    const placed = rows.filter(r => x.values[r] !== null && y.values[r] !== null);
    const lost = rows.filter(r => x.values[r] === null || y.values[r] === null);
    const foot = height - BOTTOM - (lost.length ? STRIP : 0);
    points = [];
    said.textContent = `${rows.length} of ${data.count} configurations`
      + (lost.length ? `, ${lost.length} without these numbers (crosses below the axis).` : ".");
    pen.fillStyle = grey;
    if (placed.length) {
      const h = scaleOf(placed.map(r => x.values[r]), LEFT, width - RIGHT);
      const v = scaleOf(placed.map(r => y.values[r]), foot, TOP);
      pen.strokeStyle = line; pen.lineWidth = 1;
      pen.textAlign = "right"; pen.textBaseline = "middle";
      for (const mark of v.marks) {
        const at = v.at(mark);
        pen.beginPath(); pen.moveTo(LEFT, at); pen.lineTo(width - RIGHT, at); pen.stroke();
        pen.fillText(shown(mark, y.unit), LEFT - 6, at);
      }
      pen.textAlign = "center"; pen.textBaseline = "top";
      let free = -Infinity;
      for (const mark of h.marks) {
        const at = h.at(mark), text = shown(mark, x.unit), half = pen.measureText(text).width / 2;
        if (at - half < free || at + half > width) continue;
        free = at + half + 8;
        pen.fillText(text, at, height - BOTTOM + 4);
      }
      pen.textAlign = "right";
      pen.fillText(x.label + (h.log ? " (log)" : ""), width - RIGHT, height - 16);
      pen.textAlign = "left";
      pen.fillText("↑ " + y.label + (v.log ? " (log)" : ""), LEFT + 4, TOP - 8);
      for (const r of placed) points.push([h.at(x.values[r]), v.at(y.values[r]), r]);
    }
    lost.forEach((r, place) => points.push(
      [LEFT + (width - LEFT - RIGHT) * (place + 0.5) / lost.length, foot + STRIP / 2, r]));
    pen.strokeStyle = ink; pen.lineWidth = 0.5;
    points.forEach(([px, py, r], place) => {
      pen.fillStyle = data.colours[textOf("strategy", r)];
      pen.globalAlpha = data.count > 500 ? 0.7 : 1;
      pen.beginPath();
      if (place < placed.length) {
        pen.arc(px, py, RADIUS, 0, 7); pen.fill();
      } else {
        pen.moveTo(px - 3, py - 3); pen.lineTo(px + 3, py + 3);
        pen.moveTo(px + 3, py - 3); pen.lineTo(px - 3, py + 3);
      }
      pen.stroke();
    });
    pen.globalAlpha = 1;
    if (points[chosen]) {
      pen.lineWidth = 2; pen.beginPath();
      pen.arc(points[chosen][0], points[chosen][1], RADIUS + 3, 0, 7); pen.stroke();
    }
  };

  const choosePoint = place => {
    if (place === chosen) return;
    chosen = place;
    draw();
    tip.hidden = place < 0;
    if (place < 0) return;
    const [px, py, row] = points[place];
    const facts = [...data.texts.filter(one => one.name !== "status").map(one =>
      [one.label, one.pool[one.values[row]]]), ...data.numbers.map(one =>
      [one.label, shown(one.values[row], one.unit)])];
    tip.replaceChildren(...facts.filter(([, text]) => text).flatMap(([label, text]) => {
      const [dt, dd] = ["dt", "dd"].map(tag => document.createElement(tag));
      dt.textContent = label; dd.textContent = text;
      return [dt, dd];
    }));
    const beside = px + tip.offsetWidth + 16 < plot.clientWidth ? px + 12 : px - tip.offsetWidth - 12;
    tip.style.left = `${Math.max(0, beside)}px`;
    tip.style.top = `${Math.max(0, Math.min(py, canvas.clientHeight - tip.offsetHeight))}px`;
  };
  const nearest = event => {
    const box = canvas.getBoundingClientRect();
    let best = -1, least = REACH ** 2;
    points.forEach(([px, py], place) => {
      const far = (px - event.clientX + box.left) ** 2 + (py - event.clientY + box.top) ** 2;
      if (far < least) { least = far; best = place; }
    });
    return best;
  };
  canvas.addEventListener("pointermove", event => pinned || choosePoint(nearest(event)));
  canvas.addEventListener("pointerleave", () => pinned || choosePoint(-1));
  canvas.addEventListener("click", event => {
    pinned = false;
    choosePoint(nearest(event));
    pinned = chosen >= 0;
  });
  canvas.addEventListener("keydown", event => {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") { pinned = false; choosePoint(-1); }
    if (!by || !points.length) return;
    event.preventDefault();
    choosePoint((chosen + by + points.length) % points.length);
  });
  // The rows of a very long table are made when it is opened.
  for (const source of document.querySelectorAll("script[data-rows]")) {
    source.closest("details").addEventListener("toggle", () => {
      const body = document.getElementById(source.dataset.rows).tBodies[0];
      const heads = body.parentElement.tHead.rows[0].cells;
      for (const texts of JSON.parse(source.textContent)) {
        const line = body.insertRow();
        texts.forEach((text, at) => {
          const cell = line.insertCell();
          cell.textContent = text;
          cell.className = heads[at].className;
        });
      }
      filter();
      draw();
    }, { once: true });
  }
  // A link opens what is folded around its target.
  const unfold = () => {
    const target = document.getElementById(location.hash.slice(1));
    for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    target?.querySelector(":scope > details:has(> summary > h2)")?.setAttribute("open", "");
    target?.scrollIntoView();
  };
  if (location.hash) unfold();
  addEventListener("hashchange", unfold);
  new ResizeObserver(draw).observe(plot);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  filter();
  draw();
})();
