"use strict";
// What the page computes: sums, maxima and means over every string, along the states of a machine that structloss made.
// Labels are numbers; scores[t][k] is that of label k at position t, and a string's score is their sum.

const MAX_BEST = 5;

/** The machine of strings of one length against a reference, read from the page's data; null if there is none. */
function machineOf(data, lossName, reference, length) {
  const first = [];
  const pattern = reference.map((k) => {
    if (!first.includes(k)) first.push(k);
    return first.indexOf(k);
  });
  const at = data.machines[`${lossName}|${pattern.join("")}|${length}`];
  if (at === undefined) return null;
  const [classes, offsets, next, weights, last] = data.arrays[at];
  const C = offsets.length > 2 ? next.length / offsets[length] : 0;
  return {
    first, classes, offsets, next, last, C, length,
    weight: (arc) => (weights.length ? weights[arc] : 0),
    classOf: (k) => classes[first.includes(k) ? first.indexOf(k) : first.length],
  };
}

/** The states of each level, and of each the arc that a label takes: [place in the next level, weight]. */
function step(machine, level, state, label) {
  const arc = (machine.offsets[level] + state) * machine.C + machine.classOf(label);
  return [machine.next[arc], machine.weight(arc)];
}

function size(machine, level) {
  return machine.offsets[level + 1] - machine.offsets[level];
}

/** The loss of one string. */
function lossOf(machine, string) {
  let state = 0, total = 0;
  string.forEach((label, t) => {
    const [following, weight] = step(machine, t, state, label);
    state = following;
    total += weight;
  });
  return total + machine.last[state];
}

function softmax(row) {
  const most = Math.max(...row), e = row.map((x) => Math.exp(x - most)), sum = e.reduce((a, b) => a + b);
  return e.map((x) => x / sum);
}

function logSumExp(row) {
  const most = Math.max(...row);
  return most + Math.log(row.reduce((sum, x) => sum + Math.exp(x - most), 0));
}

/**
 * Over all strings y with p(y) = exp(score(y)) / Z: the sum of p exp(scale L), the sum of p exp(scale L) L, the share
 * of each label at each position in the first (T x K), what it adds to the second, and the share of each state.
 */
function sums(machine, scores, scale) {
  const T = scores.length, K = scores[0].length, p = scores.map(softmax);
  const zeros = (level) => Array.from({length: size(machine, level)}, () => [0, 0]);
  const forward = [[[1, 0]]], backward = [];
  for (let t = 0; t < T; t++) {
    forward.push(zeros(t + 1));
    forward[t].forEach(([mass, loss], s) => {
      for (let k = 0; k < K; k++) {
        const [next, w] = step(machine, t, s, k), v = p[t][k] * Math.exp(scale * w);
        forward[t + 1][next][0] += mass * v;
        forward[t + 1][next][1] += (loss + mass * w) * v;
      }
    });
  }
  backward[T] = machine.last.map((w) => [Math.exp(scale * w), w * Math.exp(scale * w)]);
  const labels = p.map((row) => row.map(() => [0, 0]));
  for (let t = T - 1; t >= 0; t--) {
    backward[t] = zeros(t);
    backward[t].forEach((here, s) => {
      const [mass, loss] = forward[t][s];
      for (let k = 0; k < K; k++) {
        const [next, w] = step(machine, t, s, k), v = p[t][k] * Math.exp(scale * w);
        const [m, l] = backward[t + 1][next];
        here[0] += v * m;
        here[1] += v * (l + w * m);
        labels[t][k][0] += mass * v * m;
        labels[t][k][1] += v * (loss * m + mass * (l + w * m));
      }
    });
  }
  const [total, ofLoss] = backward[0][0];
  const shares = forward.map((level, t) => level.map(([mass], s) => (mass * backward[t][s][0]) / total));
  return {total, ofLoss, labels, shares};
}

/** The best strings by score + scale * loss, ties in the order of the alphabet: [value, string]. */
function best(machine, scores, scale, count = MAX_BEST) {
  const before = (a, b) => {
    if (Math.abs(a[0] - b[0]) > 1e-9) return b[0] - a[0];
    for (let t = 0; t < a[1].length; t++) if (a[1][t] !== b[1][t]) return a[1][t] - b[1][t];
    return 0;
  };
  let lists = [[[0, []]]];
  scores.forEach((row, t) => {
    const following = Array.from({length: size(machine, t + 1)}, () => []);
    lists.forEach((list, s) => {
      row.forEach((score, k) => {
        const [next, w] = step(machine, t, s, k);
        for (const [value, string] of list) following[next].push([value + score + scale * w, [...string, k]]);
      });
    });
    lists = following.map((list) => list.sort(before).slice(0, count));
  });
  return lists.flatMap((list, s) => list.map(([value, string]) => [value + scale * machine.last[s], string]))
    .sort(before).slice(0, count);
}

/** The objective's value and its gradient (T x K) in the scores; null where the reference is no string of this length. */
function objectiveOf(name, machine, scores, reference, epsilon) {
  const T = scores.length, K = scores[0].length, p = scores.map(softmax);
  const grid = (f) => scores.map((row, t) => row.map((_, k) => f(t, k)));
  const one = (string) => (t, k) => (string[t] === k ? 1 : 0);
  const logZ = scores.reduce((sum, row) => sum + logSumExp(row), 0);
  const top = (scale) => best(machine, scores, scale, 1)[0];
  if (name === "Risk") {
    const {ofLoss, labels} = sums(machine, scores, 0);
    return {value: ofLoss, gradient: grid((t, k) => labels[t][k][1] - p[t][k] * ofLoss)};
  }
  if (name === "DirectLoss") {
    const [high, at] = top(0), [low, toward] = top(-epsilon), a = one(at), b = one(toward);
    return {value: (high - low) / epsilon, gradient: grid((t, k) => (a(t, k) - b(t, k)) / epsilon)};
  }
  if (reference.length !== T) return null;
  const score = reference.reduce((sum, k, t) => sum + scores[t][k], 0), right = one(reference);
  if (name === "NegativeLogLikelihood")
    return {value: logZ - score, gradient: grid((t, k) => p[t][k] - right(t, k))};
  if (name === "SoftmaxMargin") {
    const {total, labels} = sums(machine, scores, 1);
    return {value: logZ + Math.log(total) - score, gradient: grid((t, k) => labels[t][k][0] / total - right(t, k))};
  }
  const [value, string] = top(name === "Hinge" ? 1 : 0), found = one(string);
  return {value: value - score, gradient: grid((t, k) => found(t, k) - right(t, k))};
}

/** All that the page shows of one case. */
function compute(data, {loss, reference, scores, objective, epsilon = 1}) {
  const machine = machineOf(data, loss, reference, scores.length);
  if (machine === null) return null;
  const scale = {SoftmaxMargin: 1, Hinge: 1, DirectLoss: -epsilon}[objective] || 0;
  const logZ = scores.reduce((sum, row) => sum + logSumExp(row), 0);
  const model = best(machine, scores, 0), augmented = best(machine, scores, scale);
  const {total, shares} = sums(machine, scores, scale);
  const told = (list, z) => list.map(([value, string]) => (
    {string, share: Math.exp(value - z), loss: lossOf(machine, string)}
  ));
  return {
    machine, shares, scale, result: objectiveOf(objective, machine, scores, reference, epsilon),
    risk: sums(machine, scores, 0).ofLoss, model: told(model, logZ), augmented: told(augmented, logZ + Math.log(total)),
  };
}
