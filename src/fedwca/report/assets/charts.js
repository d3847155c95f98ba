"use strict";
// Plots as SVG in the page's colors. Every text is inserted as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";
// Okabe and Ito's colors, distinct for the color-blind; dashes distinguish more than eight lines.
const PALETTE = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c6d1f", "#7f7f7f"];
const DASHES = ["", "6 3", "2 3", "8 3 2 3"];
const SHAPES = ["circle", "square", "triangle", "diamond"];

const colourOf = (number) => PALETTE[number % PALETTE.length];
const dashOf = (number) => DASHES[Math.floor(number / PALETTE.length) % DASHES.length];

function node(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  for (const child of children) made.append(child);
  return made;
}

function words(x, y, text, attributes = {}) {
  const made = node("text", {x, y, fill: "var(--ink)", "font-size": 12, ...attributes});
  made.textContent = text;
  return made;
}

function shortened(text, limit) {
  const letters = [...text];
  return letters.length <= limit ? text : letters.slice(0, limit - 1).join("") + "…";
}

function canvas(width, height, title, description) {
  const made = node("svg", {
    viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title}. ${description}`,
    "font-family": "system-ui, 'DejaVu Sans', sans-serif",
  });
  const name = node("title");
  name.textContent = title;
  const about = node("desc");
  about.textContent = description;
  made.append(name, about);
  return made;
}

// --- scales ---------------------------------------------------------------------------------

function ticks(low, high, wanted = 5) {
  if (!(high > low)) return [low];
  const rough = (high - low) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-6; at += step) {
    found.push(Math.abs(at) < step * 1e-6 ? 0 : at);
  }
  return found;
}

// Ticks up to the first one above the highest value, so that nothing touches the edge.
function roomyTicks(low, high) {
  const found = ticks(low, high || 1), step = found.length > 1 ? found[1] - found[0] : 1;
  while (found[found.length - 1] < high - step * 1e-6) found.push(found[found.length - 1] + step);
  return found;
}

function extent(values, from) {
  const known = values.filter((v) => v !== null && v !== undefined);
  let low = Math.min(...known), high = Math.max(...known);
  if (from !== undefined) low = Math.min(low, from);
  if (!known.length) return [0, 1];
  if (low === high) [low, high] = [low - Math.abs(low || 1) * 0.1, high + Math.abs(high || 1) * 0.1];
  return [low, high];
}

const scale = (low, high, start, end) => (value) => start + (end - start) * (value - low) / ((high - low) || 1);

function axes(svg, box, y, yTicks, format, xTicks, x, xName) {
  for (const at of yTicks) {
    svg.append(
      node("line", {x1: box.left, x2: box.right, y1: y(at), y2: y(at), stroke: "var(--line)"}),
      words(box.left - 6, y(at) + 4, (format.axis || format)(at), {"text-anchor": "end", fill: "var(--faint)", "font-size": 11}));
  }
  for (const at of xTicks) {
    svg.append(words(x(at), box.bottom + 16, String(at), {"text-anchor": "middle", fill: "var(--faint)", "font-size": 11}));
  }
  if (xName) svg.append(words(box.right, box.bottom + 30, xName, {"text-anchor": "end", fill: "var(--faint)", "font-size": 11}));
}

const wholeTicks = (low, high, width) => [...new Set(ticks(low, high, Math.max(2, Math.floor(width / 70))).map(Math.round))]
  .filter((at) => at >= low && at <= high);

// --- lines ----------------------------------------------------------------------------------

// series: [{name, values, spread?}], one value for each of `rounds`, null if unknown.
function lineChart({title, description, rounds, series, format, from, width}) {
  const height = 250, box = {left: 52, right: width - 12, top: 10, bottom: height - 40};
  const svg = canvas(width, height, title, description);
  const reach = series.flatMap((s) => s.values.flatMap((v, i) => v === null ? [] : [v - (s.spread?.[i] || 0), v + (s.spread?.[i] || 0)]));
  const [low, above] = extent(reach, from), high = Math.min(above, format.most ?? Infinity), marks = ticks(low, high);
  const y = scale(low, high, box.bottom, box.top);
  const x = scale(rounds[0], rounds[rounds.length - 1], box.left + 4, box.right - 4);
  axes(svg, box, y, marks, format, wholeTicks(rounds[0], rounds[rounds.length - 1], width), x, "round");
  series.forEach((one, number) => drawLine(svg, one, number, rounds, x, y));
  return svg;
}

function drawLine(svg, one, number, rounds, x, y) {
  const colour = one.colour || colourOf(number);
  const points = rounds.map((r, i) => [x(r), one.values[i], one.spread?.[i] || 0]).filter((p) => p[1] !== null);
  if (!points.length) return;
  if (points.some((p) => p[2])) {
    const up = points.map((p) => `${p[0]},${y(p[1] + p[2])}`), down = points.map((p) => `${p[0]},${y(p[1] - p[2])}`).reverse();
    svg.append(node("polygon", {points: [...up, ...down].join(" "), fill: colour, opacity: 0.15}));
  }
  svg.append(node("polyline", {
    points: points.map((p) => `${p[0].toFixed(1)},${y(p[1]).toFixed(1)}`).join(" "), fill: "none",
    stroke: colour, "stroke-width": one.strong ? 3.5 : 2, "stroke-dasharray": dashOf(number), "stroke-linejoin": "round",
  }));
  if (points.length <= 30) for (const p of points) svg.append(marker(p[0], y(p[1]), number, 3, colour));
}

function marker(x, y, number, size, fill = colourOf(number)) {
  const shape = SHAPES[number % SHAPES.length];
  if (shape === "circle") return node("circle", {cx: x, cy: y, r: size, fill});
  if (shape === "square") return node("rect", {x: x - size, y: y - size, width: 2 * size, height: 2 * size, fill});
  const corners = shape === "triangle"
    ? [[x, y - size * 1.2], [x + size * 1.2, y + size], [x - size * 1.2, y + size]]
    : [[x, y - size * 1.4], [x + size * 1.4, y], [x, y + size * 1.4], [x - size * 1.4, y]];
  return node("polygon", {points: corners.map((c) => c.join(",")).join(" "), fill});
}

// --- bars -----------------------------------------------------------------------------------

// groups: names along x; series: [{name, values: [{mean, spread}]}], one value for each group.
function barChart({title, description, groups, series, format, width}) {
  const room = (width - 60) / groups.length, fits = groups.every((name) => [...name].length * 7 <= room);
  const letters = Math.max(...groups.map((name) => Math.min(13, [...name].length)));
  const height = 226 + (fits ? 24 : room >= 18 ? 10 + letters * 5 : 8);
  const box = {left: 52, right: width - 8, top: 16, bottom: 226};
  const svg = canvas(width, height, title, description);
  const tops = series.flatMap((s) => s.values.map((v) => v && v.mean !== null ? v.mean + (v.spread || 0) : null));
  const marks = roomyTicks(0, extent(tops, 0)[1]);
  const y = scale(0, marks[marks.length - 1], box.bottom, box.top);
  axes(svg, box, y, marks, format, [], null, "");
  const bar = Math.min(40, room * 0.84 / series.length);
  groups.forEach((group, g) => {
    const middle = box.left + room * (g + 0.5);
    if (fits) svg.append(words(middle, box.bottom + 18, group, {"text-anchor": "middle"}));
    else if (room >= 18) svg.append(slanted(middle + 4, box.bottom + 14, group));
    series.forEach((one, number) => drawBar(svg, one, number, one.values[g], middle + (number - series.length / 2) * bar, bar, y, group, format));
  });
  return svg;
}

function slanted(x, y, text) {
  const label = words(x, y, shortened(text, 13), {"text-anchor": "end", "font-size": 11, transform: `rotate(-40 ${x} ${y})`});
  const whole = node("title");
  whole.textContent = text;
  label.append(whole);
  return label;
}

function drawBar(svg, one, number, value, left, bar, y, group, format) {
  if (!value || value.mean === null) return;
  const shape = node("rect", {
    x: left + 0.5, y: y(value.mean), width: Math.max(1, bar - 1), height: Math.max(0, y(0) - y(value.mean)),
    fill: value.colour || one.colour || colourOf(number),
  });
  const tooltip = node("title");
  tooltip.textContent = `${group}, ${one.name}: ${format(value.mean)}${value.spread ? " ± " + format(value.spread) : ""}`;
  shape.append(tooltip);
  svg.append(shape);
  const middle = left + bar / 2;
  if (value.spread) {
    svg.append(node("path", {
      d: `M${middle},${y(value.mean - value.spread)}V${y(value.mean + value.spread)}m-3,0h6M${middle - 3},${y(value.mean - value.spread)}h6`,
      stroke: "var(--ink)", "stroke-width": 1.2, fill: "none",
    }));
  } else if (bar >= (format(value.mean).length * 5.6)) {
    svg.append(words(middle, y(value.mean) - 4, format(value.mean), {"text-anchor": "middle", "font-size": 11}));
  }
}

// --- heat map -------------------------------------------------------------------------------

// rows: [{name, group, colour, own}]; values[row][column] from 0 to 1.
function heatMap({title, description, rows, columns, values, width}) {
  const left = Math.min(170, Math.max(80, width * 0.3)), line = rows.length > 40 ? 14 : 20, top = 26;
  const height = top + rows.length * line + 8, cell = Math.min(90, (width - left - 8) / columns.length);
  const svg = canvas(width, height, title, description);
  columns.forEach((name, c) => svg.append(words(left + cell * (c + 0.5), 16, shortened(name, Math.max(2, Math.floor(cell / 7))), {"text-anchor": "middle", fill: "var(--faint)"})));
  rows.forEach((row, r) => {
    const y = top + r * line;
    svg.append(node("rect", {x: 0, y: y + 2, width: 5, height: line - 4, fill: row.colour}));
    svg.append(words(10, y + line * 0.72, shortened(row.name, Math.floor((left - 16) / 7.4)), {"font-size": Math.min(12, line - 4)}));
    columns.forEach((_, c) => drawCell(svg, values[r]?.[c], left + cell * c, y, cell, line, row.own === c));
  });
  return svg;
}

function drawCell(svg, value, x, y, width, height, own) {
  if (value === undefined || value === null) return;
  const share = Math.max(0, Math.min(1, value));
  svg.append(
    node("rect", {x: x + 1, y: y + 1, width: width - 2, height: height - 2, fill: "var(--heat-0)"}),
    node("rect", {x: x + 1, y: y + 1, width: width - 2, height: height - 2, fill: "var(--heat-1)", opacity: share.toFixed(3)}));
  if (own) svg.append(node("rect", {x: x + 1.5, y: y + 1.5, width: width - 3, height: height - 3, fill: "none", stroke: "#d55e00", "stroke-width": 2}));
  if (width >= 30 && height >= 14) {
    svg.append(words(x + width / 2, y + height * 0.7, value.toFixed(2), {
      "text-anchor": "middle", "font-size": Math.min(11, height - 5), fill: share > 0.55 ? "var(--paper)" : "var(--ink)", class: "cell",
    }));
  }
}

// --- clusters -------------------------------------------------------------------------------

// clusters: [{name, clients: [{name, colour, pictures: [base64 PNG]}]}]
function clusterPicture({title, description, clusters, width}) {
  const tile = 36, line = tile + 8, pad = 8, label = 118;
  const most = Math.max(0, ...clusters.flatMap((c) => c.clients.map((k) => k.pictures.length)));
  const column = label + most * (tile + 2) + 16;
  const across = Math.max(1, Math.floor(width / column)), wide = Math.max(width, column);
  const svg = canvas(wide, 10, title, description);
  let x = 0, y = 0, tallest = 0;
  clusters.forEach((cluster, number) => {
    if (number && number % across === 0) [x, y, tallest] = [0, y + tallest, 0];
    const high = 30 + cluster.clients.length * line + pad * 2;
    drawCluster(svg, cluster, x, y, wide / across - 8, high - 8, {tile, line, pad, label});
    [x, tallest] = [x + wide / across, Math.max(tallest, high)];
  });
  svg.setAttribute("viewBox", `0 0 ${wide} ${Math.max(40, y + tallest)}`);
  return svg;
}

function drawCluster(svg, cluster, x, y, width, height, {tile, line, pad, label}) {
  svg.append(node("rect", {x: x + 1, y: y + 1, width, height, rx: 8, fill: "none", stroke: "var(--line)"}));
  svg.append(words(x + pad + 2, y + 22, cluster.name, {"font-weight": 600}));
  cluster.clients.forEach((client, number) => {
    const top = y + 30 + number * line;
    svg.append(node("rect", {x: x + pad, y: top + 2, width: 5, height: line - 6, fill: client.colour}));
    const name = words(x + pad + 10, top + line / 2, shortened(client.name, 14), {"dominant-baseline": "middle"});
    const whole = node("title");
    whole.textContent = client.name;
    name.append(whole);
    svg.append(name);
    client.pictures.forEach((picture, n) => svg.append(node("image", {
      x: x + pad + label + n * (tile + 2), y: top + 2, width: tile, height: tile,
      href: `data:image/png;base64,${picture}`, style: "image-rendering: pixelated",
    })));
  });
}

// --- stacked shares -------------------------------------------------------------------------

// series: [{name, values: [{mean}]}], which sum to one in every round.
function stackedBars({title, description, rounds, series, format, width}) {
  const height = 220, box = {left: 52, right: width - 12, top: 10, bottom: height - 40};
  const svg = canvas(width, height, title, description);
  const y = scale(0, 1, box.bottom, box.top), step = (box.right - box.left) / rounds.length;
  const x = (round) => box.left + (rounds.indexOf(round) + 0.5) * step;
  const marked = wholeTicks(rounds[0], rounds[rounds.length - 1], width).filter((r) => rounds.includes(r));
  axes(svg, box, y, ticks(0, 1), format, marked.length ? marked : [rounds[0]], x, "round");
  rounds.forEach((round, r) => {
    let base = 0;
    series.forEach((one, number) => {
      const value = one.values[r].mean, bar = node("rect", {
        x: x(round) - step / 2 + 0.5, width: Math.max(1, step - 1), y: y(base + value), height: Math.max(0, y(base) - y(base + value)), fill: colourOf(number),
      });
      const tooltip = node("title");
      tooltip.textContent = `round ${round}, ${one.name}: ${format(value)}`;
      bar.append(tooltip);
      svg.append(bar);
      base += value;
    });
  });
  return svg;
}
