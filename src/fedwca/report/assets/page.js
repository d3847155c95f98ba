"use strict";
// The page: sections of figures, each with its data as a table and ways to save it.

const percent = (value) => value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)} %`;
percent.most = 1;
percent.axis = (value) => `${Number((100 * value).toFixed(1))} %`;
const plain = (value) => value === null || value === undefined ? "–" : String(Number(value.toPrecision(4)));
const size = (bytes) => {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let value = bytes, unit = 0;
  while (value >= 1000 && unit < units.length - 1) [value, unit] = [value / 1000, unit + 1];
  return `${unit ? value.toFixed(1) : value} ${units[unit]}`;
};
const mean = (values) => {
  const known = values.filter((v) => v !== null && v !== undefined);
  return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null;
};

// Without this, a client named "constructor" would find the property of every object.
const own = (object, name) => Object.hasOwn(object, name) ? object[name] : undefined;

// The choices of the reader, which survive a redraw.
const choices = {round: null, by: "domain", open: new Set(), sort: {}};
const drawn = [];  // {host, draw, width}: redrawn when the width changes

function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== false && value !== null) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

// --- figures --------------------------------------------------------------------------------

function figure(id, {title, about, draw, table, legend = [], always = false, above = []}) {
  const host = el("div", {class: "host"});
  const save = el("div", {class: "save"},
    el("button", {type: "button", "aria-label": `Save ${title} as SVG`, onclick: () => saveSvg(host, id)}, "SVG"),
    el("button", {type: "button", "aria-label": `Save ${title} as PNG`, onclick: () => savePng(host, id)}, "PNG"));
  const made = el("figure", {id}, el("div", {class: "tools"}, el("h3", {}, title), save));
  if (about) made.append(el("p", {class: "note"}, about));
  made.append(...above, host);
  if (legend.length > (always ? 0 : 1)) made.append(legendOf(legend));
  made.append(dataTable(id, table));
  drawn.push({host, draw, width: 0});
  return made;
}

function redraw(entry) {
  const width = Math.max(260, Math.floor(entry.host.clientWidth || 600));
  if (width === entry.width) return;
  entry.width = width;
  try {
    entry.host.replaceChildren(entry.draw(width));
  } catch (error) {  // one broken plot must not prevent the others
    entry.host.replaceChildren(el("p", {class: "note"}, `This plot cannot be drawn: ${error.message}`));
    console.error(error);
  }
}

function legendOf(entries) {
  const list = el("ul", {class: "legend"});
  entries.forEach((entry, number) => {
    const sign = node("svg", {viewBox: "0 0 22 12", "aria-hidden": "true"});
    const colour = entry.colour || colourOf(number);
    if (entry.colour && !entry.strong) sign.append(node("rect", {x: 4, y: 0, width: 12, height: 12, fill: colour}));
    else sign.append(node("line", {x1: 0, x2: 22, y1: 6, y2: 6, stroke: colour, "stroke-width": entry.strong ? 3.5 : 2.5, "stroke-dasharray": dashOf(number)}), marker(11, 6, number, 3.5, colour));
    list.append(el("li", {title: entry.name}, sign, shortened(entry.name, 60)));
  });
  return list;
}

function dataTable(id, table, open = false) {
  const key = `table-${id}`;
  const made = el("details", {}, el("summary", {}, "Data as a table"));
  const fill = () => {
    if (made.open && made.children.length === 1) made.append(sortable(key, typeof table === "function" ? table() : table));
    if (made.open) choices.open.add(key); else choices.open.delete(key);
  };
  made.addEventListener("toggle", fill);
  if (open || choices.open.has(key)) { made.open = true; fill(); }
  return made;
}

// header: names; rows: cells, each a text, a number or {value, text}.
function sortable(key, {header, rows}) {
  const body = el("tbody"), head = el("tr");
  const valueOf = (cell) => cell !== null && typeof cell === "object" ? cell.value : cell;
  const textOf = (cell) => cell === null || cell === undefined ? "–" : typeof cell === "object" ? cell.text : String(cell);
  const isText = header.map((_, c) => rows.some((row) => typeof valueOf(row[c]) === "string"));
  const show = () => {
    const chosen = choices.sort[key];
    const order = rows.slice();
    if (chosen) order.sort((a, b) => compare(valueOf(a[chosen.column]), valueOf(b[chosen.column])) * chosen.way);
    body.replaceChildren(...order.map((row) => el("tr", {}, ...row.map((cell, c) => el("td", {class: isText[c] ? "text" : null, title: textOf(cell)}, textOf(cell))))));
    [...head.children].forEach((th, c) => th.setAttribute("aria-sort", chosen?.column === c ? (chosen.way > 0 ? "ascending" : "descending") : "none"));
  };
  header.forEach((name, column) => head.append(el("th", {scope: "col", class: isText[column] ? "text" : null}, el("button", {type: "button", onclick: () => {
    const before = choices.sort[key];
    choices.sort[key] = {column, way: before?.column === column ? -before.way : 1};
    show();
  }}, name))));
  show();
  return el("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": "Table, scrolls"}, el("table", {}, el("thead", {}, head), body));
}

function compare(a, b) {
  const missing = (v) => v === null || v === undefined;
  if (missing(a) || missing(b)) return missing(a) - missing(b);
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), undefined, {numeric: true});
}

// --- saving ---------------------------------------------------------------------------------

function standalone(host) {
  const copy = host.querySelector("svg").cloneNode(true);
  const [, , width, height] = copy.getAttribute("viewBox").split(" ").map(Number);
  copy.setAttribute("xmlns", SVG);
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  const style = getComputedStyle(document.documentElement);
  const solid = (text) => text.replace(/var\((--[a-z0-9-]+)\)/g, (_, name) => style.getPropertyValue(name).trim());
  for (const part of copy.querySelectorAll("*")) {
    for (const name of ["fill", "stroke"]) if (part.getAttribute(name)?.startsWith("var(")) part.setAttribute(name, solid(part.getAttribute(name)));
  }
  copy.insertBefore(node("rect", {width, height, fill: solid("var(--paper)")}), copy.children[2] || null);
  return {text: new XMLSerializer().serializeToString(copy), width, height};
}

function download(name, url) {
  const link = el("a", {href: url, download: name});
  document.body.append(link);
  link.click();
  link.remove();
}

function saveSvg(host, id) {
  const url = URL.createObjectURL(new Blob([standalone(host).text], {type: "image/svg+xml"}));
  download(`${id}.svg`, url);
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

function savePng(host, id) {
  const {text, width, height} = standalone(host), picture = new Image();
  picture.onload = () => {
    const sheet = el("canvas", {width: 2 * width, height: 2 * height}), pen = sheet.getContext("2d");
    pen.scale(2, 2);
    pen.drawImage(picture, 0, 0);
    download(`${id}.png`, sheet.toDataURL("image/png"));
  };
  picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
}

// --- one run --------------------------------------------------------------------------------

function groupsOf(data) {
  const key = {
    domain: (client) => client.domain || client.name,
    cluster: (client) => client.cluster === null ? "no cluster" : `cluster ${client.cluster}`,
    client: (client) => client.name,
  }[choices.by];
  const groups = new Map();
  for (const client of data.clients) groups.set(key(client), [...(groups.get(key(client)) || []), client.name]);
  return groups;
}

// Sites of a deployment have no domains; if each client has its own, there is nothing to compare.
const knowsDomains = (data) => data.clients.some((c) => c.domain) && domainsOf(data).length < data.clients.length;
const domainsOf = (data) => [...new Set(data.clients.map((c) => c.domain || c.name))];
const domainColour = (data, client) => coloursTell(data) ? colourOf(domainsOf(data).indexOf(client.domain || client.name)) : "#7f7f7f";
const coloursTell = (data) => domainsOf(data).length <= PALETTE.length;
const domainLegend = (data) => coloursTell(data) ? domainsOf(data).map((name, n) => ({name, colour: colourOf(n)})) : [];

function runNumbers(data) {
  const first = mean(data.clients.map((c) => c.first_accuracy)), last = mean(data.clients.map((c) => c.accuracy));
  const down = data.costs.bytes_down.reduce((a, b) => a + b, 0), up = data.costs.bytes_up.reduce((a, b) => a + b, 0);
  const clusters = new Set(data.clients.map((c) => c.cluster).filter((c) => c !== null));
  const entries = [
    [last === null ? "unknown" : percent(last), last === null ? "accuracy: no labels" : `accuracy, mean of clients${first === null ? "" : ` (before: ${percent(first)})`}`],
    [`${data.rounds_done} / ${data.rounds_planned}`, data.done ? "rounds, done" : "rounds, unfinished"],
    [String(data.clients.length), knowsDomains(data) ? `clients in ${domainsOf(data).length} domains` : "clients"],
    [clusters.size ? String(clusters.size) : "–", data.purity ? `clusters, purity ${data.purity.purity.toFixed(2)} (by chance ${data.purity.chance.toFixed(2)})` : "clusters"],
    [size(down + up), `sent in total: ${size(down)} down, ${size(up)} up`],
  ];
  return el("ul", {class: "numbers"}, ...entries.map(([number, text]) => el("li", {}, el("b", {}, number), el("span", {}, text))));
}

function settingsTable(settings) {
  const rows = Object.entries(settings).flatMap(([section, values]) => Object.entries(values).map(([key, value]) => [
    `${section}.${key}`, typeof value === "string" ? value : JSON.stringify(value)]));
  return {header: ["setting", "value"], rows};
}

function summary(data) {
  const made = el("details", {}, el("summary", {}, "All settings"), sortable("settings", settingsTable(data.settings)));
  return section("run", "Summary", data.notice, runNumbers(data), made);
}

function finalAccuracy(data) {
  if (!data.series.accuracy) return null;
  const domains = domainsOf(data), members = (domain) => data.clients.filter((c) => (c.domain || c.name) === domain);
  const bars = [
    {name: "before", colour: "#9aa4af", values: domains.map((d) => ({mean: mean(members(d).map((c) => c.first_accuracy)), spread: null}))},
    {name: "final", colour: "#0072b2", values: domains.map((d) => ({mean: mean(members(d).map((c) => c.accuracy)), spread: null}))},
  ];
  const byDomain = figure("accuracy-by-domain", {
    title: "Accuracy by domain", legend: bars,
    draw: (width) => barChart({title: "Accuracy by domain", description: "Mean of each domain's clients, before the first round and after the last.", groups: domains, series: bars, format: percent, width}),
    table: {header: ["domain", "clients", "before", "final"], rows: domains.map((d, i) => [d, members(d).length, share(bars[0].values[i].mean), share(bars[1].values[i].mean)])},
  });
  return section("accuracy", "Final accuracy", "On each client's own test images.", el("div", {class: "charts"}, ...(knowsDomains(data) ? [byDomain] : []), clientFigure(data)));
}

const share = (value) => ({value, text: percent(value)});

function clientFigure(data) {
  const bars = [{name: "accuracy", values: data.clients.map((c) => ({mean: c.accuracy, spread: null, colour: domainColour(data, c)}))}];
  return figure("accuracy-by-client", {
    title: "Accuracy by client", legend: domainLegend(data),
    draw: (width) => barChart({title: "Accuracy by client", description: "Final accuracy of each client, colored by domain.", groups: data.clients.map((c) => c.name), series: bars, format: percent, width}),
    table: {
      header: ["client", "domain", "cluster", "images", "before", "final", "confidence"],
      rows: data.clients.map((c) => [c.name, c.domain, c.cluster, c.images, share(c.first_accuracy), share(c.accuracy), share(c.confidence)]),
    },
  });
}

const QUANTITIES = {
  accuracy: ["Accuracy", percent, "On each client's test images."],
  confidence: ["Confidence", percent, "Mean probability of the predicted class; needs no label."],
  matched: ["Matched labels", percent, "Share of images on which the two models' pseudo-labels agree."],
  density: ["Soft neighborhood density", plain, "Of the own cluster's model; β compares it with that of the blend."],
  loss_im: ["Information-maximization loss", plain, "Mean over the round's steps."],
  loss_ce: ["Cross-entropy loss", plain, "Mean over the round's steps, on pseudo-labels."],
};

function byRound(data) {
  const known = Object.keys(data.series).filter((name) => QUANTITIES[name] || name.startsWith("loss_"));
  if (!known.length || data.rounds.length < 2) return null;
  if (!knowsDomains(data) && choices.by === "domain") choices.by = "client";
  const choice = el("select", {id: "by", onchange: (event) => { choices.by = event.target.value; show(current); document.getElementById("by").focus(); }},
    ...(knowsDomains(data) ? ["domain", "cluster", "client"] : ["client", "cluster"]).map((name) => el("option", {value: name, selected: choices.by === name}, name)));
  const figures = known.map((name) => quantityFigure(data, name));
  return section("rounds", "By round", "Before round 1 (round 0) and after each.", el("p", {}, el("label", {for: "by"}, "One line per "), choice), el("div", {class: "charts"}, ...figures));
}

function quantityFigure(data, name) {
  const [title, format, about] = QUANTITIES[name] || [name.replaceAll("_", " "), plain, ""];
  const series = [...groupsOf(data)].map(([group, names]) => ({
    name: group, values: data.rounds.map((_, i) => mean(names.map((client) => data.series[name][client][i]))),
  }));
  if (series.length > 1 && series.length <= 8) series.push({name: "mean of clients", strong: true, colour: "var(--ink)", values: data.rounds.map((_, i) => mean(data.clients.map((c) => data.series[name][c.name][i])))});
  return figure(`round-${name}`, {
    title, about, legend: series.length <= 16 ? series : [],
    draw: (width) => lineChart({title: `${title} by round`, description: about, rounds: data.rounds, series, format, width}),
    table: () => ({header: ["round", ...series.map((s) => s.name)], rows: data.rounds.map((r, i) => [r, ...series.map((s) => ({value: s.values[i], text: format(s.values[i])}))])}),
  });
}

function clusterSection(data) {
  const found = [...new Set(data.clients.map((c) => c.cluster).filter((c) => c !== null))].sort((a, b) => a - b);
  if (!found.length) return null;
  const clusters = found.map((number) => ({
    name: `cluster ${number}`,
    clients: data.clients.filter((c) => c.cluster === number).map((c) => ({name: c.name, colour: domainColour(data, c), pictures: own(data.examples, c.name) || []})),
  }));
  const pictures = Object.keys(data.examples).length ? "" : " This run has no example images.";
  const title = knowsDomains(data) ? "Clusters and true domains" : "Clusters of clients";
  const shown = figure("clusters", {
    title, legend: domainLegend(data),
    draw: (width) => clusterPicture({title, description: clusters.map((c) => `${c.name}: ${c.clients.map((k) => k.name).join(", ")}`).join("; "), clusters, width}),
    table: {header: ["client", "domain", "cluster"], rows: data.clients.map((c) => [c.name, c.domain, c.cluster])},
  });
  const quality = data.purity ? ` Purity ${data.purity.purity.toFixed(2)}, by chance ${data.purity.chance.toFixed(2)}.` : "";
  return section("clusters-section", "Clusters", `Each client's cluster after the last round.${quality}${pictures}`, el("div", {class: "charts wide"}, shown));
}

function weightSection(data) {
  if (!data.weights) return null;
  const rounds = data.weights.rounds, last = rounds.length - 1;
  const at = () => choices.round === null ? last : Math.max(0, Math.min(last, rounds.findIndex((r) => r.round >= choices.round) === -1 ? last : rounds.findIndex((r) => r.round >= choices.round)));
  const columns = Math.max(...rounds.flatMap((r) => Object.values(r.values).map((v) => v.length)));
  const names = Array.from({length: columns}, (_, c) => `cluster ${c}`);
  const shownRound = el("output", {for: "round"}), slider = el("input", {type: "range", id: "round", min: 0, max: last, step: 1, value: at()});
  const draw = (width) => heatMap({
    title: `Cluster weights v of each client, round r = ${rounds[at()].round}`, description: "A row for each client, a column for each cluster; the client's own cluster is framed.",
    rows: data.clients.map((c) => ({name: c.name, colour: domainColour(data, c), own: c.cluster})), columns: names,
    values: data.clients.map((c) => own(rounds[at()].values, c.name)), width,
  });
  const shown = figure("weights", {
    title: "Cluster weights of each client", about: "Share of each cluster's model in the client's initial model f_init. Framed: the client's own cluster.", draw,
    legend: domainLegend(data),
    above: [el("div", {class: "slider"}, el("label", {for: "round"}, "Round"), slider, shownRound, el("span", {class: "shades"}, "0", el("i", {}), "1"))],
    table: () => ({header: ["round", "client", ...names], rows: rounds.flatMap((r) => Object.entries(r.values).map(([name, values]) => [r.round, name, ...values]))}),
  });
  const entry = drawn[drawn.length - 1], showRound = () => {
    shownRound.textContent = `r = ${rounds[at()].round} of ${rounds[last].round}`;
    slider.setAttribute("aria-valuetext", shownRound.textContent);
  };
  slider.addEventListener("input", () => {
    choices.round = Number(slider.value) === last ? null : rounds[Number(slider.value)].round;
    showRound();
    entry.width = 0;
    redraw(entry);
  });
  showRound();
  return section("weights-section", "Cluster weights", "", el("div", {class: "charts wide"}, shown));
}

function labelSection(data) {
  if (!data.series.matched) return null;
  const means = data.rounds.map((_, i) => mean(data.clients.map((c) => data.series.matched[c.name][i])));
  const rounds = data.rounds.filter((_, i) => means[i] !== null), matched = means.filter((v) => v !== null);
  if (!rounds.length) return null;
  const series = [{name: "matched", values: matched.map((v) => ({mean: v, spread: null}))}, {name: "mismatched", values: matched.map((v) => ({mean: 1 - v, spread: null}))}];
  const shown = figure("labels", {
    title: "Matched and mismatched labels", legend: series.map((s, n) => ({name: s.name, colour: colourOf(n)})),
    draw: (width) => stackedBars({title: "Matched and mismatched labels by round", description: "Share of images, mean of all clients.", rounds, series, format: percent, width}),
    table: {header: ["round", "matched", "mismatched"], rows: rounds.map((r, i) => [r, share(matched[i]), share(1 - matched[i])])},
  });
  return section("labels-section", "Pseudo-labels", "Where the pseudo-labels of f_init and of the cluster's model differ, the image is mixed with one on which they agree.", el("div", {class: "charts wide"}, shown));
}

function costSection(data) {
  const {rounds, seconds, bytes_down: down, bytes_up: up} = data.costs;
  if (!rounds.length) return null;
  const bytes = [{name: "down", values: down}, {name: "up", values: up}];
  const traffic = figure("bytes", {
    title: "Bytes by round", legend: bytes, draw: (width) => lineChart({title: "Bytes by round", description: "Sent to and received from all clients.", rounds, series: bytes, format: size, from: 0, width}),
    table: {header: ["round", "down", "up"], rows: rounds.map((r, i) => [r, {value: down[i], text: size(down[i])}, {value: up[i], text: size(up[i])}])},
  });
  const time = figure("seconds", {
    title: "Seconds by round", draw: (width) => lineChart({title: "Seconds by round", description: "Duration of each round for all clients.", rounds, series: [{name: "seconds", values: seconds}], format: plain, from: 0, width}),
    table: {header: ["round", "seconds"], rows: rounds.map((r, i) => [r, seconds[i]])},
  });
  return section("costs", "Bytes and seconds", "", el("div", {class: "charts"}, traffic, time));
}

function siteSection(data) {
  const names = Object.keys(data.sites);
  if (!names.length && !data.log.length) return null;
  const parts = [];
  if (names.length) parts.push(sortable("sites", {
    header: ["site", "connected", "images", "last reply", "rejected", "last problem"],
    rows: names.map((n) => [n, data.sites[n].online ? "yes" : "lost", data.sites[n].images, data.sites[n].answered, data.sites[n].refused || 0, data.sites[n].problem]),
  }));
  if (data.log.length) parts.push(el("details", {}, el("summary", {}, "Log"), el("div", {class: "scroll", tabindex: "0"}, el("pre", {class: "log"}, data.log.join("\n")))));
  return section("sites-section", "Sites", "The sites of this deployment.", ...parts);
}

// --- several runs ---------------------------------------------------------------------------

function groupSections(group, number) {
  const name = group.source ? `${group.benchmark}, source ${group.source}` : `${group.benchmark}, given source model`;
  group.methods.forEach((method, n) => { method.colour = colourOf(n); });
  const scored = group.methods.filter((m) => m.mean.mean !== null);
  const parts = [];
  if (scored.length) parts.push(el("div", {class: "charts wide"}, comparedBars(group, scored, number)));
  const drawnCurves = scored.filter((m) => m.curve.length > 1);
  if (drawnCurves.length) parts.push(el("div", {class: "charts wide"}, comparedCurves(drawnCurves, number)));
  parts.push(el("h3", {}, "Accuracy, mean ± standard deviation over trials"), comparedTable(group, number));
  if (group.differences.length) parts.push(el("h3", {}, "Is the best ahead by more than chance?"), differenceTable(group, number), el("p", {class: "note"}, "Two-sided paired t-test over shared trials, not corrected for the number of comparisons."));
  if (!scored.length) parts.push(el("p", {class: "note"}, "No run here has labels, so there is no accuracy to compare."));
  return section(`group-${number}`, name, "", ...parts);
}

function comparedBars(group, methods, number) {
  const groups = [...group.domains, "mean of clients"];
  const series = methods.map((m) => ({name: m.name, colour: m.colour, values: [...group.domains.map((d) => own(m.domains, d) || null), m.mean]}));
  return figure(`bars-${number}`, {
    title: "Accuracy by domain and method", legend: series,
    draw: (width) => barChart({title: "Accuracy by domain and method", description: "Bars are means over trials, whiskers their standard deviation.", groups, series, format: percent, width}),
    table: {header: ["method", ...groups], rows: series.map((s) => [s.name, ...s.values.map((v) => v ? share(v.mean) : null)])},
  });
}

function comparedCurves(methods, number) {
  const rounds = [...new Set(methods.flatMap((m) => m.curve.map((p) => p.round)))].sort((a, b) => a - b);
  const series = methods.map((m) => {
    const at = new Map(m.curve.map((p) => [p.round, p]));
    return {name: m.name, colour: m.colour, values: rounds.map((r) => at.get(r)?.mean ?? null), spread: rounds.map((r) => at.get(r)?.spread ?? 0)};
  });
  return figure(`curves-${number}`, {
    title: "Accuracy by round", legend: series, always: true,
    draw: (width) => lineChart({title: "Accuracy by round", description: "Mean over clients and trials; the band is the standard deviation over trials.", rounds, series, format: percent, width}),
    table: () => ({header: ["round", ...series.map((s) => s.name)], rows: rounds.map((r, i) => [r, ...series.map((s) => share(s.values[i]))])}),
  });
}

const spreadCell = (value) => !value || value.mean === null ? null : {value: value.mean, text: (100 * value.mean).toFixed(1) + (value.spread === null ? "" : ` ± ${(100 * value.spread).toFixed(1)}`)};

function comparedTable(group, number) {
  return sortable(`compared-${number}`, {
    header: ["method", ...group.domains, "mean", "trials", "rounds"],
    rows: group.methods.map((m) => [m.name, ...group.domains.map((d) => spreadCell(own(m.domains, d))), spreadCell(m.mean), m.trials.length, m.rounds.join("/") + (m.done ? "" : "…")]),
  });
}

function differenceTable(group, number) {
  const points = (value) => ({value, text: (100 * value).toFixed(1)});
  return sortable(`differences-${number}`, {
    header: ["best", "against", "difference (points)", "95 % from", "to", "p", "pairs"],
    rows: group.differences.map((d) => [d.best, d.other, points(d.mean), points(d.low), points(d.high), d.p, d.pairs]),
  });
}

function runList(data) {
  return section("runs", "Runs", "", sortable("runs", {
    header: ["run", "method", "seed", "rounds", "state", "accuracy"],
    rows: data.runs.map((r) => [r.name, r.method, r.seed, `${r.rounds}/${r.planned}`, r.done ? "done" : "unfinished", share(r.accuracy)]),
  }));
}

// --- the page -------------------------------------------------------------------------------

function section(id, title, about, ...children) {
  return el("section", {id, "aria-labelledby": `${id}-title`}, el("h2", {id: `${id}-title`}, title), ...(about ? [el("p", {class: "about"}, about)] : []), ...children);
}

function sectionsOf(data) {
  if (data.kind === "comparison") return [...data.groups.map(groupSections), runList(data)];
  return [summary, finalAccuracy, clusterSection, weightSection, byRound, labelSection, costSection, siteSection].map((make) => make(data)).filter(Boolean);
}

let current = null;

function show(data) {
  current = data;
  const focused = document.activeElement?.id;
  drawn.length = 0;
  const title = data.kind === "run" ? `${data.method} on ${data.settings.data.benchmark}` : `${data.runs.length} runs compared`;
  document.title = title;
  document.getElementById("title").textContent = title;
  document.getElementById("subtitle").textContent = data.kind === "run"
    ? `${data.settings.data.source ? `Source domain ${data.settings.data.source}` : "Given source model"}, seed ${data.seed}, run ${data.name}` : data.groups.map((g) => g.benchmark).join(", ");
  const sections = sectionsOf(data);
  document.getElementById("main").replaceChildren(...sections);
  document.getElementById("contents").replaceChildren(...sections.map((s) => el("a", {href: `#${s.id}`}, s.querySelector("h2").textContent)));
  drawn.forEach(redraw);
  if (focused && focused !== "main") document.getElementById(focused)?.focus({preventScroll: true});
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  const button = document.getElementById("theme");
  button.textContent = name === "dark" ? "Light" : "Dark";
  button.setAttribute("aria-pressed", String(name === "dark"));
  button.setAttribute("aria-label", "Dark colours");
}

function start() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  setTheme(dark.matches ? "dark" : "light");
  dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
  document.getElementById("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  new ResizeObserver(() => drawn.forEach(redraw)).observe(document.getElementById("main"));
  const data = JSON.parse(document.getElementById("data").textContent);
  if (data.kind === "live") follow(data.every); else show(data);
}

// --- following a run ------------------------------------------------------------------------

const isDone = (data) => data?.kind === "comparison" ? data.runs.every((run) => run.done) : data?.done;

async function follow(every) {
  const live = document.getElementById("live");
  const announce = (text) => { if (live.textContent !== text) live.textContent = text; };  // read aloud once
  live.hidden = false;
  let tag = "";
  for (;;) {
    try {
      const response = await fetch("data.json", {headers: tag ? {"If-None-Match": tag} : {}, cache: "no-store"});
      if (response.status === 200) {
        show(await response.json());
        tag = response.headers.get("ETag") || "";
      }
      else if (response.status !== 304) throw new Error(await response.text() || `status ${response.status}`);
      announce(isDone(current) ? "The run is done." : "Following the run.");
    } catch (error) {
      const isOffline = error instanceof TypeError && error.message.includes("fetch");
      announce(isOffline ? "The server has stopped; the page shows the last state." : `The page cannot be updated: ${error.message}`);
    }
    await new Promise((resolve) => setTimeout(resolve, every));
  }
}

start();
