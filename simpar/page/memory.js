/* Memory: plan and baseline beside each other, on one scale. */
function memory() {
  const canvas = document.getElementById('bytes');
  const layers = data.memory[0].layers.map(layer => layer.name);
  const colour = name => LAYERS[layers.indexOf(name) % LAYERS.length];
  const highest = Math.max(...data.memory.map(side => side.peak.bytes));
  const device = data.memory[0].device, tallest = device < 2 * highest ? Math.max(device, highest) : highest;
  const H = 230, SIDE = 58, power = Math.pow(10, Math.floor(Math.log10(tallest / 3)));
  const stride = power * [5, 2, 1].find(one => one * power <= tallest / 3);
  function drawBytes() {
    const [draw, width] = fitted(canvas, H + 46), wide = width / data.memory.length;
    draw.font = '11px system-ui, sans-serif';
    data.memory.forEach((side, index) => {
      const from = index * wide + SIDE, span = wide - SIDE - 14;
      const x = time => from + time / longest * span, y = held => 26 + H - held / (1.06 * tallest) * H;
      const floor = side.times.map(() => 0);
      for (const layer of side.layers) {
        draw.fillStyle = colour(layer.name);
        draw.beginPath();
        draw.moveTo(x(side.times[0]), y(floor[0]));
        const tops = floor.map((held, at) => held + layer.bytes[at]);
        side.times.forEach((time, at) => { draw.lineTo(x(time), y(tops[at])); draw.lineTo(x(side.times[at + 1] ?? side.step), y(tops[at])); });
        for (let at = side.times.length - 1; at >= 0; at--) { draw.lineTo(x(side.times[at + 1] ?? side.step), y(floor[at])); draw.lineTo(x(side.times[at]), y(floor[at])); }
        draw.fill();
        tops.forEach((held, at) => { floor[at] = held; });
      }
      draw.fillStyle = style('--text');
      draw.textAlign = 'left';
      draw.font = 'bold 12px system-ui, sans-serif';
      draw.fillText(shortened(draw, side.name, ': ' + bytes(side.peak.bytes) + ' at its peak', span), from, 14);
      draw.font = '11px system-ui, sans-serif';
      if (device <= tallest) { draw.fillStyle = COLOURS.exposed; draw.fillRect(from, y(device), span, 1.5); draw.fillText('device: ' + bytes(device), from + 4, y(device) + 12); }
      draw.fillStyle = style('--soft');
      draw.textAlign = 'right';
      for (let held = 0; held <= tallest; held += stride) draw.fillText(bytes(held), from - 6, y(held) + 4);
      draw.textAlign = 'left';
      draw.save();
      draw.beginPath();
      draw.rect(from - 20, 0, span + 40, H + 60);
      draw.clip();
      axis(draw, [0, longest], from, from + span, H + 27);
      draw.restore();
    });
  }
  canvas.addEventListener('pointerleave', () => { tip.hidden = true; });
  canvas.addEventListener('pointermove', event => {
    const box = canvas.getBoundingClientRect(), wide = box.width / data.memory.length;
    const index = Math.min(data.memory.length - 1, Math.max(0, Math.floor((event.clientX - box.left) / wide))), side = data.memory[index];
    const time = (event.clientX - box.left - index * wide - SIDE) / (wide - SIDE - 14) * longest, at = before(side.times, time);
    if (at < 0 || time > side.step) { tip.hidden = true; return; }
    const held = side.layers.map(layer => [layer.bytes[at], layer.name]).filter(one => one[0]).sort((one, other) => other[0] - one[0]);
    showTip(event, [bytes(held.reduce((sum, one) => sum + one[0], 0)) + ' at ' + seconds(time), ...held.slice(0, 8).map(one => one[1] + ' ' + bytes(one[0]))]);
  });
  legend(document.getElementById('bytes-legend'), layers.map(name => [name, colour(name)]));
  document.getElementById('bytes-words').textContent = data.memory[0].words;
  drawn.push(drawBytes);
}
