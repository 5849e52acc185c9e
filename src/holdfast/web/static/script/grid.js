// ---- the ranks of a gang as a grid
let grid = null, gridTag = "", gridTurn = false;
if ($("grid")) {
  drawGrid();
  document.addEventListener("placed", drawGrid);
  addEventListener("resize", () => grid && paintGrid($("grid")));
}
async function drawGrid() {
  const canvas = $("grid");
  if (!canvas || gridTurn || document.hidden) return;
  gridTurn = true;
  try {
    const more = new URLSearchParams({ tag: gridTag, place: grid ? grid.place : "" });
    const answer = await fetch(canvas.dataset.ranks + "?" + more, { headers: headers(), cache: "no-store" });
    if (answer.status === 200) {
      const found = await answer.json();
      if (!found.hosts && grid) { found.hosts = grid.hosts; found.names = grid.names; }
      // The tag of an answer with places is another than that of the next one without them.
      gridTag = grid && grid.place === found.place ? answer.headers.get("Holdfast-Tag") : "";
      grid = found;
      paintGrid(canvas);
    } else if (answer.status !== 304) complain((await answer.json()).detail);
  } catch (error) { /* the mark at the top says that the page is not live */ }
  gridTurn = false;
}
const HOST_ROWS = 24, READABLE = 22, HOST_GUTTER = 120, RANK_GUTTER = 44;
// Returns how many ranks each host has, where they stand one after the other and are alike many; else 0.
function ranksAHost() {
  const each = grid.hosts.lastIndexOf(grid.hosts[0]) + 1;
  return grid.hosts.every((host, rank) => host === Math.floor(rank / each)) ? each : 0;
}
function paintGrid(canvas) {
  const count = grid.hue.length, width = canvas.clientWidth, scale = devicePixelRatio || 1;
  // A host is a row, or a few of them where its ranks are more than fit with their numbers.
  const each = ranksAHost(), held = Math.min(each, 2 ** Math.floor(Math.log2((width - HOST_GUTTER) / (READABLE + 2)))), lines = Math.ceil(each / held);
  const byHost = each > 1 && grid.names.length * lines <= HOST_ROWS;
  const size = byHost ? READABLE : Math.max(5, Math.min(16, Math.floor(Math.sqrt(width * 420 / count)))), gap = size > 8 ? 2 : 1;
  const gutter = byHost ? HOST_GUTTER : RANK_GUTTER, fit = Math.max(1, Math.floor((width - gutter) / (size + gap)));
  // Rows are whole hosts, or a round number of ranks, so that a place in the grid can be counted.
  const block = each > 1 ? each : 8, columns = byHost ? held : fit > block ? fit - fit % block : fit;
  const group = byHost ? each : columns, deep = byHost ? lines : 1, rows = Math.ceil(count / group) * deep;
  const left = (rank) => gutter + rank % group % columns * (size + gap);
  const over = (rank) => (Math.floor(rank / group) * deep + Math.floor(rank % group / columns)) * (size + gap);
  canvas.width = width * scale;
  canvas.height = rows * (size + gap) * scale;
  canvas.style.height = rows * (size + gap) + "px";
  const pen = canvas.getContext("2d"), look = getComputedStyle(document.body), colours = grid.hues.map(colourOf);
  pen.scale(scale, scale);
  const slow = new Set(grid.slow);
  const ring = (x, y, colour) => { pen.globalAlpha = 1; pen.lineWidth = size > 8 ? 2 : 1; pen.strokeStyle = colour; pen.strokeRect(x, y, size, size); };
  const strength = (rank) => Math.max(0.35, 1 - Math.max(0, grid.lags[rank]) / 20);
  for (let rank = 0; rank < count; rank += 1) {
    const x = left(rank), y = over(rank);
    pen.globalAlpha = strength(rank);
    pen.fillStyle = colours[grid.hue.charCodeAt(rank) - 65];
    pen.fillRect(x, y, size, size);
  }
  pen.globalAlpha = 1;
  pen.font = "11px " + getComputedStyle(document.body).getPropertyValue("--sans");
  pen.textBaseline = "middle";
  const write = (text, x, rank, most, colour) => { pen.fillStyle = colour; pen.fillText(text, x, over(rank) + size / 2 + 0.5, most); };
  const dim = getComputedStyle($("grid-note")).color, every = Math.ceil(12 / (size + gap));
  for (let rank = 0; rank < count; rank += byHost ? group : columns * every) write(byHost ? grid.names[grid.hosts[rank]] : rank, 0, rank, gutter - 8, dim);
  pen.textAlign = "center";
  if (size >= 18) for (let rank = 0; rank < count; rank += 1) write(rank, left(rank) + size / 2, rank, size, strength(rank) < 0.6 ? look.color : look.backgroundColor);
  for (const rank of [...slow, grid.first]) {
    if (rank >= 0) ring(left(rank), over(rank), rank === grid.first ? look.color : colourOf("draining"));
  }
  const find = (event) => {
    const column = Math.floor((event.offsetX - gutter) / (size + gap)), row = Math.floor(event.offsetY / (size + gap));
    const place = column + columns * (row % deep), at = Math.floor(row / deep) * group + place;
    return column >= 0 && column < columns && place < group && at >= 0 && at < count ? at : -1;
  };
  const followed = new Set(grid.followed);
  canvas.onmousemove = (event) => {
    const rank = find(event);
    if (rank < 0) return;
    const beat = grid.beats[rank] < 0 ? -1 : Math.max(0, Math.round(Date.now() / 1000 - grid.beat_at + grid.beats[rank] * 5));
    const lag = grid.lags[rank];
    $("grid-note").textContent = "rank " + rank + ", " + grid.hues[grid.hue.charCodeAt(rank) - 65] + ", on " + (grid.names[grid.hosts[rank]] || "no host")
      + (lag < 0 ? "" : ", step " + (grid.step - lag).toLocaleString() + (lag ? ", " + lag + " behind" : "")) + (beat < 0 ? "" : ", last beat " + beat + " s ago")
      + (rank === grid.first ? ", fell first" : followed.has(rank) ? ", fell with another" : "") + (slow.has(rank) ? ", suspected" : "");
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
