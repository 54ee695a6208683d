'use strict';
const data = JSON.parse(document.getElementById('data').textContent);
const unit = data.unit;
const COLOURS = {compute: '#0072B2', copy: '#56B4E9', F: '#0072B2', R: '#F0E442', B: '#009E73', I: '#009E73', W: '#E69F00', U: '#CC79A7', communication: '#8d9299', exposed: '#D55E00'};
const NAMES = {compute: 'computation', copy: 'copies', F: 'forward', R: 'recomputed', I: 'backward', W: 'gradients of weights', U: 'update', communication: 'communication', exposed: 'exposed communication'};
const LAYERS = ['#0072B2', '#56B4E9', '#009E73', '#E69F00', '#CC79A7', '#8C8C8C', '#D55E00', '#8B5A2B', '#6A51A3', '#B5BD4C', '#4D4D4D', '#2FA4A0', '#B9C4CC'];
const computes = op => op[1] !== 'communication' && op[1] !== 'copy';
const tip = document.getElementById('tip');
const style = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function seconds(ticks, digits = 4) {
  const time = ticks * unit;
  for (const [size, name] of [[1, 's'], [1e-3, 'ms'], [1e-6, 'us'], [1e-9, 'ns']])
    if (Math.abs(time) >= size) return +(time / size).toPrecision(digits) + ' ' + name;
  return '0 s';
}
function bytes(size) {
  for (const [factor, name] of [[1e12, 'TB'], [1e9, 'GB'], [1e6, 'MB'], [1e3, 'KB']])
    if (size >= factor) return +(size / factor).toPrecision(3) + ' ' + name;
  return size + ' B';
}
function showTip(event, lines) {
  tip.replaceChildren(...lines.map((text, index) => {
    const line = document.createElement(index ? 'div' : 'b');
    line.textContent = text;
    return line;
  }));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 8)) + 'px';
  tip.style.top = (event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 12 : event.clientY + 18) + 'px';
}
/* The last of rising numbers that is no larger than a value; -1 if none is. */
function before(numbers, value) {
  let low = 0, high = numbers.length;
  while (low < high) { const middle = (low + high) >> 1; if (numbers[middle] <= value) low = middle + 1; else high = middle; }
  return low - 1;
}
/* A canvas as sharp as the screen; returns what draws on it and its width. */
function fitted(canvas, height) {
  const ratio = devicePixelRatio || 1, width = canvas.parentElement.clientWidth;
  canvas.style.height = height + 'px';
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const draw = canvas.getContext('2d');
  draw.setTransform(ratio, 0, 0, ratio, 0, 0);
  draw.clearRect(0, 0, width, height);
  return [draw, width];
}
/* Words and their ending as far as they have room: the words lose their own end. */
function shortened(draw, words, ending, room) {
  let shown = words;
  while (shown && draw.measureText(shown + (shown === words ? '' : '…') + ending).width > room) shown = shown.slice(0, -1);
  return shown + (shown === words ? '' : '…') + ending;
}
function axis(draw, window, left, width, y) {
  const span = window[1] - window[0];
  let stride = Math.pow(10, Math.floor(Math.log10(span * unit / 6)));
  while (span * unit / stride > 9) stride *= stride * 2 <= span * unit / 4 ? 2 : 2.5;
  draw.fillStyle = style('--soft');
  draw.textAlign = 'center';
  for (let time = Math.ceil(window[0] * unit / stride) * stride; time <= window[1] * unit; time += stride) {
    const x = left + (time / unit - window[0]) / span * (width - left);
    draw.fillRect(x, y, 1, 4);
    if (x > left + 14 && x < width - 26) draw.fillText(seconds(Math.round(time / unit)), x, y + 15);
  }
  draw.textAlign = 'left';
}

/* The rows of the timeline, from the top: of the baseline, then of the plan. */
const LEFT = 150, ROW = 20, THIN = 10, GAP = 4;
const rows = [];
for (const side of [...data.sides].reverse()) {
  rows.push({heading: side.name, ending: ': ' + seconds(side.step, 3), height: 24, side});
  for (const boxes of side.boxes) rows.push({...boxes, boxed: true, side, height: ROW + GAP});
  for (const group of side.groups) {
    rows.push({heading: group.label + (group.merged ? ' (ops that follow one another are one bar)' : ''), small: true, height: 20, side});
    for (const row of group.rows) {
      const compute = row.op.some(op => computes(side.ops[op]));
      rows.push({...row, side, compute, height: (compute ? ROW : THIN + 4) + GAP});
    }
  }
}
/* Communication is exposed where the rank computes nothing: the compute rows of a group, merged. */
for (const side of data.sides) for (const group of side.groups) {
  const busy = [];
  for (const row of group.rows) row.begin.forEach((begin, at) => {
    if (computes(side.ops[row.op[at]])) busy.push([begin + row.wait[at], begin + row.wait[at] + row.run[at]]);
  });
  busy.sort((one, other) => one[0] - other[0]);
  const merged = [];
  for (const [begin, end] of busy) {
    const last = merged[merged.length - 1];
    if (last && begin <= last[1]) last[1] = Math.max(last[1], end); else merged.push([begin, end]);
  }
  for (const row of rows) if (group.rows.some(one => one.begin === row.begin)) row.busy = {begin: merged.map(one => one[0]), end: merged.map(one => one[1])};
}
const longest = Math.max(...data.sides.map(side => side.step));
let view = [0, longest];
const steps = document.getElementById('steps');
const total = rows.reduce((sum, row) => sum + row.height, 0) + 34;

function drawSteps() {
  const [draw, width] = fitted(steps, total);
  const scale = (width - LEFT - 8) / (view[1] - view[0]);
  const x = time => LEFT + (time - view[0]) * scale;
  draw.font = '11px system-ui, sans-serif';
  draw.textBaseline = 'middle';
  let y = 4;
  for (const row of rows) {
    row.y = y;
    if (row.heading) {
      draw.fillStyle = row.small ? style('--soft') : style('--text');
      draw.font = (row.small ? '' : 'bold ') + '12px system-ui, sans-serif';
      draw.fillText(shortened(draw, row.heading, row.ending || '', width - 16), 8, y + row.height / 2 + 2);
      draw.font = '11px system-ui, sans-serif';
    } else {
      const height = row.height - GAP;
      draw.fillStyle = style('--text');
      draw.fillText(row.label.length > 22 ? row.label.slice(0, 21) + '…' : row.label, 8, y + height / 2);
      draw.save();
      draw.beginPath();
      draw.rect(LEFT, y, width - LEFT - 8, height);
      draw.clip();
      draw.fillStyle = style('--row');
      draw.fillRect(x(0), y, row.side.step * scale, height);
      if (row.boxed) drawBoxes(draw, row, x, scale, y, height); else drawSpans(draw, row, x, scale, y, height);
      draw.restore();
    }
    y += row.height;
  }
  draw.fillStyle = style('--text');
  for (const side of data.sides) {
    const mine = rows.filter(row => row.side === side && !row.heading);
    if (mine.length && x(side.step) >= LEFT) draw.fillRect(x(side.step), mine[0].y, 1.5, mine[mine.length - 1].y + mine[mine.length - 1].height - mine[0].y);
  }
  axis(draw, view, LEFT, width - 8, y + 2);
}
function drawBoxes(draw, row, x, scale, y, height) {
  draw.fillStyle = COLOURS.exposed;
  for (const [begin, run] of row.exposed) if (run * scale > 0.2) draw.fillRect(x(begin), y + height - 5, Math.max(run * scale, 0.4), 5);
  /* The ground of a box is pale: there its action waits. */
  draw.globalAlpha = 0.35;
  for (let at = 0; at < row.begin.length; at++) {
    draw.fillStyle = COLOURS[row.kind[at]];
    draw.fillRect(x(row.begin[at]), y, Math.max(row.run[at] * scale - 0.6, 0.4), height);
  }
  draw.globalAlpha = 1;
  for (const [begin, run, kind, top, share] of row.parts) {
    if (begin + run < view[0] || begin > view[1]) continue;
    draw.fillStyle = COLOURS[kind];
    draw.fillRect(x(begin), y + top * height, Math.max(run * scale - (run * scale > 3 ? 0.6 : 0), 0.4), share * height);
  }
  draw.textAlign = 'center';
  draw.fillStyle = '#fff';
  /* What is recomputed is light, and stands at the top. */
  const middle = y + 0.5 + height * (row.parts.some(part => part[2] === 'R') ? 0.64 : 0.5);
  row.words.forEach(([begin, run], at) => {
    if (run * scale > 7 * row.text[at].length) draw.fillText(row.text[at], x(begin + run / 2), middle);
  });
  draw.textAlign = 'left';
}
function drawSpans(draw, row, x, scale, y, height) {
  const low = row.compute ? 0 : 2;
  for (let at = Math.max(0, before(row.begin, view[0]) - 40); at < row.begin.length && row.begin[at] < view[1]; at++) {
    const begin = row.begin[at], wait = row.wait[at], run = row.run[at], op = row.side.ops[row.op[at]];
    const communicates = op[1] === 'communication', wide = run * scale;
    if ((begin + wait + run) < view[0]) continue;
    draw.fillStyle = COLOURS[op[1]];
    draw.globalAlpha = 1;
    if (wait) draw.fillRect(x(begin), y + height / 2 - 1, wait * scale, 2);
    if (!communicates && row.copy[at] > 0) draw.globalAlpha = 0.62;
    draw.fillRect(x(begin + wait), y + low, Math.max(wide - (wide > 3 ? 0.6 : 0), 0.4), height - 2 * low);
    draw.globalAlpha = 1;
    if (communicates && row.busy) {
      bare(draw, row, begin, begin + wait, x, scale, y + height / 2 - 1, 2);
      bare(draw, row, begin + wait, begin + wait + run, x, scale, y + low, height - 2 * low);
    }
    if (!communicates && wide > 40) {
      const name = op[0].replace(/^layer\d+\./, '').replace(/\.[FIWU](\.recompute)?$/, '');
      if (wide > 6.2 * name.length + 6) { draw.fillStyle = op[1] === 'R' ? '#000' : '#fff'; draw.fillText(name, x(begin + wait) + 4, y + height / 2 + 0.5); }
    }
  }
}
/* The parts of [begin, end] in which the rank computes nothing. */
function bare(draw, row, begin, end, x, scale, y, height) {
  draw.fillStyle = COLOURS.exposed;
  let at = Math.max(0, before(row.busy.begin, begin)), since = begin;
  for (; at < row.busy.begin.length && row.busy.begin[at] < end; at++) {
    if (row.busy.end[at] <= since) continue;
    if (row.busy.begin[at] > since) draw.fillRect(x(since), y, (row.busy.begin[at] - since) * scale, height);
    since = Math.max(since, row.busy.end[at]);
  }
  if (since < end) draw.fillRect(x(since), y, (end - since) * scale, height);
}
function timeAt(event) {
  const box = steps.getBoundingClientRect();
  return view[0] + (event.clientX - box.left - LEFT) / (box.width - LEFT - 8) * (view[1] - view[0]);
}
function zoom(factor, middle = (view[0] + view[1]) / 2) {
  if (!factor) view = [0, longest];
  else {
    const span = Math.min(longest * 1.02, Math.max(200, (view[1] - view[0]) / factor));
    const begin = middle - (middle - view[0]) / (view[1] - view[0]) * span;
    move([begin, begin + span]);
  }
  drawSteps();
}
function move(to) {
  const span = to[1] - to[0], begin = Math.max(-0.01 * longest, Math.min(to[0], longest * 1.01 - span));
  view = [begin, begin + span];
}
steps.addEventListener('wheel', event => {
  if (!event.ctrlKey && !event.metaKey && document.activeElement !== steps) return;
  event.preventDefault();
  zoom(Math.exp(-event.deltaY / 300), timeAt(event));
}, {passive: false});
let held = null;
steps.addEventListener('pointerdown', event => { held = [event.clientX, [...view]]; steps.setPointerCapture(event.pointerId); });
steps.addEventListener('pointerup', () => { held = null; });
steps.addEventListener('pointerleave', () => { tip.hidden = true; });
steps.addEventListener('dblclick', () => zoom(0));
steps.addEventListener('keydown', event => {
  const span = view[1] - view[0];
  if (event.key === '+' || event.key === 'w') zoom(1.5);
  else if (event.key === '-' || event.key === 's') zoom(1 / 1.5);
  else if (event.key === 'ArrowRight' || event.key === 'd') { move([view[0] + span / 5, view[1] + span / 5]); drawSteps(); }
  else if (event.key === 'ArrowLeft' || event.key === 'a') { move([view[0] - span / 5, view[1] - span / 5]); drawSteps(); }
  else return;
  event.preventDefault();
});
steps.addEventListener('pointermove', event => {
  if (held) {
    const shift = (held[0] - event.clientX) / (steps.clientWidth - LEFT - 8) * (view[1] - view[0]);
    move([held[1][0] + shift, held[1][1] + shift]);
    drawSteps();
    return;
  }
  const y = event.clientY - steps.getBoundingClientRect().top, time = timeAt(event);
  const row = rows.find(one => !one.heading && y >= one.y && y < one.y + one.height);
  const lines = row && (row.boxed ? told(row, time) : toldOp(row, time));
  if (lines) showTip(event, lines); else tip.hidden = true;
});
function told(row, time) {
  const at = before(row.begin, time);
  if (at < 0 || time > row.begin[at] + row.run[at]) return null;
  return [row.text[at], 'pipeline rank ' + row.label, seconds(row.run[at]) + ' from ' + seconds(row.begin[at])];
}
function toldOp(row, time) {
  const slack = 2 * (view[1] - view[0]) / steps.clientWidth;
  for (let at = before(row.begin, time + slack), tries = 0; at >= 0 && tries < 40; at--, tries++) {
    const end = row.begin[at] + row.wait[at] + row.run[at];
    if (time > end + slack) continue;
    const [name, kind, operator, why] = row.side.ops[row.op[at]];
    const where = [row.micro_batch[at] >= 0 ? 'micro-batch ' + row.micro_batch[at] : '', row.copy[at] >= 0 ? 'copy ' + row.copy[at] : ''].filter(Boolean).join(', ');
    return [name, NAMES[kind] + ' · ' + operator.replace(/_/g, '-') + (where ? ' · ' + where : ''),
      seconds(row.run[at]) + ' from ' + seconds(row.begin[at] + row.wait[at]) + (row.wait[at] ? ', after waiting ' + seconds(row.wait[at]) + ' for its peers' : ''),
      why ? 'alone: ' + why : ''].filter(Boolean);
  }
  return null;
}
for (const button of document.querySelectorAll('[data-zoom]')) button.addEventListener('click', () => zoom(+button.dataset.zoom));
function legend(element, entries) {
  for (const [name, colour] of entries) {
    const swatch = document.createElement('span');
    swatch.className = 'swatch';
    swatch.style.background = colour;
    const entry = document.createElement('span');
    entry.className = 'entry';
    entry.append(swatch, name);
    element.append(entry);
  }
}
const used = new Set(['exposed', ...data.sides.flatMap(side => side.ops.map(op => op[1]))]);
legend(document.getElementById('legend'), Object.keys(NAMES).filter(kind => used.has(kind)).map(kind => [NAMES[kind], COLOURS[kind]]));
const left = data.sides.map(side => side.left ? side.name + ': the ops of ' + side.left + ' more ranks that differ are left out (simpar run --trace has them).' : '');
document.getElementById('left').textContent = left.filter(Boolean).join(' ');

/* Critical path: what it consists of. */
for (const [what, share] of data.path) {
  const line = document.createElement('div'), bar = document.createElement('i'), text = document.createElement('span');
  line.className = 'part';
  bar.style.width = Math.max(1, 420 * share) + 'px';
  text.textContent = (100 * share).toFixed(1) + ' % ' + what;
  line.append(bar, text);
  document.getElementById('path').append(line);
}

const drawn = [drawSteps];
if (data.memory.length) memory();
const all = () => drawn.forEach(draw => draw());
addEventListener('resize', all);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', all);
all();
document.body.dataset.rows = rows.length;
window.simpar = {data, get view() { return view; }, zoom};
