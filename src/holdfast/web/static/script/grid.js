// ---- the ranks of a gang as a grid
if ($("grid")) drawGrid();
async function drawGrid() {
  const canvas = $("grid");
  if (!canvas) return;
  try { paintGrid(canvas, await call("GET", canvas.dataset.ranks)); } catch (error) { complain(error.message); }
  setTimeout(drawGrid, 3000);
}
function paintGrid(canvas, grid) {
  const count = grid.hues.length, width = canvas.clientWidth, scale = devicePixelRatio || 1;
  const size = Math.max(5, Math.min(16, Math.floor(Math.sqrt(width * 420 / count)))), gap = size > 8 ? 2 : 1;
  const columns = Math.max(1, Math.floor(width / (size + gap))), rows = Math.ceil(count / columns);
  canvas.width = width * scale;
  canvas.height = rows * (size + gap) * scale;
  canvas.style.height = rows * (size + gap) + "px";
  const pen = canvas.getContext("2d"), look = getComputedStyle(document.body), colours = {};
  pen.scale(scale, scale);
  const furthest = Math.max(...grid.steps), slow = new Set(grid.slow);
  for (let rank = 0; rank < count; rank += 1) {
    const hue = grid.hues[rank], x = rank % columns * (size + gap), y = Math.floor(rank / columns) * (size + gap);
    colours[hue] = colours[hue] || colourOf(hue);
    const lag = grid.steps[rank] < 0 ? 0 : furthest - grid.steps[rank];
    pen.globalAlpha = Math.max(0.35, 1 - lag / 20);
    pen.fillStyle = colours[hue];
    pen.fillRect(x, y, size, size);
    if (rank === grid.first || slow.has(rank)) {
      pen.globalAlpha = 1;
      pen.strokeStyle = look.color;
      pen.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
    }
  }
  const find = (event) => {
    const at = Math.floor(event.offsetX / (size + gap)) + columns * Math.floor(event.offsetY / (size + gap));
    return at >= 0 && at < count ? at : -1;
  };
  canvas.onmousemove = (event) => {
    const rank = find(event);
    if (rank < 0) return;
    const host = grid.names[grid.hosts[rank]] || "no host";
    $("grid-note").textContent = "rank " + rank + " on " + host + (grid.steps[rank] < 0 ? "" : ", step " + grid.steps[rank])
      + (grid.beats[rank] < 0 ? "" : ", last beat " + grid.beats[rank] + " s ago") + (rank === grid.first ? ", fell first" : "");
  };
  canvas.onclick = (event) => { const rank = find(event); if (rank >= 0) location.search = "?rank=" + rank; };
}
function colourOf(hue) {
  const probe = document.createElement("i");
  probe.className = "probe " + hue;
  document.body.append(probe);
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
}
