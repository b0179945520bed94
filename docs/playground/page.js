"use strict";
// What the page shows, from the four choices of its form. compute.js has the mathematics; DATA, from structloss, the machines.

const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);

function made(name, attributes = {}, text = "", space = null) {
  const node = space ? document.createElementNS(space, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.textContent = text;
  return node;
}

function shown(x) {
  return Math.abs(x - Math.round(x)) < 5e-5 ? String(Math.round(x)) : x.toFixed(3);
}

/** What the form asks for, or a sentence that says what is wrong with it. */
function asked() {
  const reference = [...byId("reference").value], answer = [...byId("answer").value];
  for (const [what, letters] of [["What is right", reference], ["What the model answers", answer]]) {
    if (letters.length < 1 || letters.length > DATA.longest)
      return `${what}: got ${letters.length} letters, but wanted 1 to ${DATA.longest}.`;
  }
  const letters = [...new Set([...reference, ...answer])].sort();
  for (const more of "abcdefghijklmnopqrstuvwxyz") {
    if (letters.length >= 4) break;
    if (!letters.includes(more)) letters.push(more);
  }
  const sure = Number(byId("sure").value), cap = byId("cap").value, objective = byId("objective").value;
  return {
    letters, answer: answer.map((c) => letters.indexOf(c)), reference: reference.map((c) => letters.indexOf(c)), objective,
    epsilon: Number(byId("epsilon").value), loss: byId("loss").value + (cap ? `:cap=${cap}` : ""),
    scores: answer.map((c) => letters.map((letter) => (letter === c ? sure : 0))),
  };
}

const PLACES = [0.3, 0.42, 0.54, 0.66, 0.18, 0.24, 0.36, 0.48, 0.6, 0.72]; // of a name along its arc

/** Columns of states, arcs between them as dark as they are probable, the way of the model's answer in colour. */
function drawn(found, letters, answer) {
  const {machine, shares} = found, T = machine.length, dx = 160, dy = 44, r = 13;
  const tallest = Math.max(...machine.offsets.slice(1).map((end, t) => end - machine.offsets[t]));
  const width = 60 + dx * T + 60, height = 40 + dy * tallest;
  const svg = made("svg", {viewBox: `0 0 ${width} ${height}`, width, height, role: "img"}, "", SVG);
  svg.append(made("title", {}, `The machine: ${shares.flat().length} states`, SVG));
  const place = (t, s) => [30 + dx * t, height / 2 + dy * (s - (size(machine, t) - 1) / 2)];
  const way = [0];
  answer.forEach((k, t) => way.push(step(machine, t, way[t], k)[0]));
  const arcs = made("g", {}, "", SVG), names = made("g", {}, "", SVG), nodes = made("g", {}, "", SVG), written = [];
  const free = (x, y, wide) => written.every((o) => Math.abs(o.y - y) > 12 || x > o.x + o.wide || o.x > x + wide);
  for (let t = 0; t < T; t++) {
    for (let s = 0; s < size(machine, t); s++) {
      const together = new Map();
      letters.forEach((letter, k) => {
        const key = step(machine, t, s, k).join(" ");
        together.set(key, [...(together.get(key) || []), k]);
      });
      for (const [key, labels] of together) {
        const [next, weight] = key.split(" ").map(Number), [x, y] = place(t, s), [u, v] = place(t + 1, next);
        const taken = way[t] === s && labels.includes(answer[t]);
        const dark = Math.max(0.12, Math.min(1, Math.sqrt(shares[t][s] * shares[t + 1][next])));
        const line = {x1: x + r, y1: y, x2: u - r, y2: v, class: taken ? "arc taken" : "arc", "stroke-opacity": dark};
        arcs.append(made("line", line, "", SVG));
        const all = labels.length === letters.length ? "any" : "other";
        const few = labels.length <= letters.length / 2, letter = few ? labels.map((k) => letters[k]).join("") : all;
        const name = letter + (weight ? ` ${shown(weight)}` : "");
        const wide = 8 * name.length, along = PLACES.map((at) => ({x: x + at * (u - x), y: y + at * (v - y) + 4, wide}));
        const spot = along.find((o) => free(o.x, o.y, wide)) || along[0]; // where no other name stands
        written.push(spot);
        const text = {x: spot.x, y: spot.y, class: taken ? "label taken" : "label"};
        names.append(made("text", {...text, "fill-opacity": Math.max(0.6, dark)}, name, SVG));
      }
    }
  }
  shares.forEach((level, t) => level.forEach((share, s) => {
    const [cx, cy] = place(t, s);
    const node = made("circle", {cx, cy, r, class: way[t] === s ? "state taken" : "state"}, "", SVG);
    node.append(made("title", {}, `probability of passing here: ${shown(share)}`, SVG));
    node.style.setProperty("--share", Math.sqrt(share));
    nodes.append(node);
    if (t === T)
      nodes.append(made("text", {x: cx + r + 5, y: cy + 4, class: "final"}, shown(machine.last[s]), SVG));
  }));
  svg.append(arcs, names, nodes);
  return svg;
}

function heat(gradient, letters) {
  const table = made("table"), head = made("tr"), most = Math.max(1e-9, ...gradient.flat().map(Math.abs));
  head.append(made("th"), ...gradient.map((_, t) => made("th", {scope: "col"}, String(t + 1))));
  table.append(head);
  letters.forEach((letter, k) => {
    const row = made("tr");
    row.append(made("th", {scope: "row"}, letter));
    for (const column of gradient) {
      const x = column[k], cell = made("td", {class: x < 0 ? "up" : "down"}, shown(x));
      cell.style.setProperty("--heat", Math.abs(x) / most);
      row.append(cell);
    }
    table.append(row);
  });
  return table;
}

function listed(strings, letters) {
  const table = made("table"), head = made("tr");
  head.append(...["string", "probability", "loss"].map((name) => made("th", {scope: "col"}, name)));
  table.append(head);
  for (const {string, share, loss} of strings) {
    const row = made("tr");
    row.append(made("td", {class: "string"}, string.map((k) => letters[k]).join("")));
    row.append(made("td", {}, share.toFixed(4)), made("td", {}, shown(loss)));
    table.append(row);
  }
  return table;
}

function show() {
  const form = asked(), said = byId("said"), parts = ["machine", "gradient", "model", "augmented"].map(byId);
  parts.forEach((part) => part.replaceChildren());
  byId("epsilon-row").hidden = byId("objective").value !== "DirectLoss";
  if (typeof form === "string") {
    said.textContent = form;
    return;
  }
  const found = compute(DATA, form), {letters} = form;
  if (found === null) {
    said.textContent = "Hamming compares position by position: it wants two strings of one length.";
    return;
  }
  const [machine, gradient, model, augmented] = parts, {result} = found;
  said.textContent = `Loss of the answer: ${shown(lossOf(found.machine, form.answer))}. `
    + `Expected loss: ${shown(found.risk)}. `
    + (result ? `${form.objective}: ${shown(result.value)}.`
      : `${form.objective} has no value: what is right is no string of the answer's length. Risk and DirectLoss have one.`);
  machine.append(drawn(found, letters, form.answer));
  byId("states").textContent = `${found.shares.flat().length} states for ${letters.length ** form.answer.length} strings`;
  if (result) gradient.append(heat(result.gradient, letters));
  model.append(listed(found.model, letters));
  augmented.append(listed(found.augmented, letters));
  byId("scale").textContent = found.scale ? `score ${found.scale > 0 ? "+" : "−"} ${shown(Math.abs(found.scale))} × loss`
    : "this objective adds no loss: the same";
  location.replace(`#${new URLSearchParams(Object.fromEntries(fields().map((x) => [x.id, x.value])))}`);
}

const fields = () => ["reference", "answer", "sure", "loss", "cap", "objective", "epsilon"].map(byId);

/** Offer the caps that there are for the loss. */
function caps() {
  const cap = byId("cap"), kept = cap.value;
  const options = DATA.losses.find(([name]) => name === byId("loss").value)[2];
  cap.replaceChildren(made("option", {value: ""}, "none"), ...options.map((c) => made("option", {value: c}, String(c))));
  cap.value = options.map(String).includes(kept) ? kept : "";
  cap.disabled = options.length === 0;
}

function begin() {
  for (const [name, said] of DATA.losses) byId("loss").append(made("option", {value: name}, said));
  for (const name of DATA.objectives) byId("objective").append(made("option", {value: name}, name));
  const given = new URLSearchParams(location.hash.slice(1));
  if (given.has("check")) { // cases of a test, whose results are left in the page
    const cases = JSON.parse(given.get("check"));
    byId("said").textContent = JSON.stringify(cases.map((x) => {
      const {result, risk, model, augmented} = compute(DATA, x);
      return {result, risk, model, augmented};
    }));
    return;
  }
  const first = {reference: "cable", answer: "cabel", sure: "2.5", loss: "edit", cap: "3", objective: "SoftmaxMargin", epsilon: "1"};
  for (const name of ["loss", "reference", "answer", "sure", "objective", "epsilon"])
    byId(name).value = given.get(name) ?? first[name];
  caps();
  byId("cap").value = given.get("cap") ?? first.cap;
  byId("loss").addEventListener("change", caps);
  for (const field of fields()) field.addEventListener("input", show);
  show();
}

begin();
