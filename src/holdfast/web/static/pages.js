// The pages' script: live parts, acts, the output of a job, keys. It needs no library. The server draws every part; the
// script reads a page anew when something changed, and puts in place what differs.
"use strict";
const $ = (id) => document.getElementById(id);
const proof = () => localStorage.getItem("holdfast-proof") || "";
const headers = (more) => ({ "Holdfast-Proof": proof(), ...more });
const GONE_SECONDS = 2, AGAIN_SECONDS = 1, GATHER_MS = 300, MAX_LINES = 5000;

// ---- theme, times, troubles
const theme = localStorage.getItem("theme");
if (theme) document.documentElement.className = theme;
$("theme").onclick = () => {
  const dark = getComputedStyle(document.body).backgroundColor.match(/\d+/)[0] < 128;
  document.documentElement.className = dark ? "light" : "dark";
  localStorage.setItem("theme", document.documentElement.className);
};
function writeTimes(root) {
  for (const each of root.querySelectorAll("time")) {
    each.title = new Date(each.dateTime).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "long" });
  }
}
writeTimes(document);
function complain(text) {
  $("trouble").textContent = text;
  $("trouble").hidden = !text;
}

// ---- a stream of events over fetch, because EventSource sends no header with the proof
async function listen(url, signal, take) {
  const answer = await fetch(url, { headers: headers(), signal, cache: "no-store" });
  if (answer.status === 401) { location.replace("/sign-in"); throw new Error("signed out"); }
  if (!answer.ok) throw new Error((await answer.json()).detail);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += value;
    const parts = rest.split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const kind = /^event: (.*)$/m.exec(part), data = /^data: (.*)$/m.exec(part);
      take(kind ? kind[1] : "", data ? JSON.parse(data[1]) : null);
    }
  }
}

// ---- what has changed: one stream for all tabs of a browser
const follows = new Set(document.body.dataset.follows.split(" ").filter(Boolean));
const channel = new BroadcastChannel("holdfast");
let heardAt = Date.now(), lost = false, due = null;
function hear(message) {
  heardAt = Date.now();
  if (lost) { lost = false; refresh(); }
  $("live").textContent = "live";
  $("live").className = "live on";
  const names = message.names || [];
  if (names.includes("all") || names.some((name) => follows.has(name))) soon();
}
channel.onmessage = (event) => hear(event.data);
function soon() {
  if (document.hidden) return;
  due = due || setTimeout(() => { due = null; refresh(); }, GATHER_MS);
}
async function hold() {
  for (;;) {
    const stop = new AbortController();
    const begunAt = Date.now();
    const silent = setInterval(() => { if (Date.now() - Math.max(heardAt, begunAt) > 4000) stop.abort(); }, 1000);
    try {
      await listen("/live", stop.signal, (kind, data) => {
        if (kind === "problem") throw new Error(data.detail);
        const message = { names: kind === "open" ? ["all"] : data ? data.names : [] };
        channel.postMessage(message);
        hear(message);
      });
    } catch (error) { /* tried again below; the mark at the top says that the page is not live */ }
    clearInterval(silent);
    await new Promise((go) => setTimeout(go, AGAIN_SECONDS * 1000));
  }
}
navigator.locks.request("holdfast-live", hold);
setInterval(() => {
  if (Date.now() - heardAt < GONE_SECONDS * 1000) return;
  lost = true;
  $("live").textContent = "no connection";
  $("live").className = "live off";
}, 500);
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
const every = Number(document.body.dataset.every);
if (every) setInterval(() => { if (!document.hidden && !lost) refresh(); }, every * 1000);

// ---- reading the page anew
let reading = false, again = false, fresh = null;
async function refresh() {
  if (reading) { again = true; return; }
  reading = true;
  try {
    const answer = await fetch(location.href, { cache: "no-store" });
    if (answer.status === 401) { location.replace("/sign-in"); return; }
    if (answer.ok) place(new DOMParser().parseFromString(await answer.text(), "text/html"));
  } catch (error) { /* the next look finds it */ }
  reading = false;
  if (again) { again = false; refresh(); }
}
function place(page) {
  const parts = [...page.querySelectorAll("[data-part]")], ids = new Set(parts.map((part) => part.id));
  for (const here of document.querySelectorAll("[data-part]")) if (!ids.has(here.id)) here.remove();
  let last = null;
  for (const part of parts) {
    const here = $(part.id);
    if (here) swap(here, document.importNode(part, true));
    else if (last) $(last).after(document.importNode(part, true));
    last = part.id;
  }
  const rows = page.querySelector("[data-rows]");
  if (rows && $("rows")) placeRows(rows);
  else if (rows) location.reload();  // the list was empty
}
function swap(here, part) {
  writeTimes(part);
  if (here.isEqualNode(part) || here.contains(document.activeElement) && here.querySelector(":focus-visible")) return;
  here.replaceWith(part);
}
// Rows that are there change in place. New rows are announced, because a list that moves under the pointer is clicked wrongly.
function placeRows(rows) {
  let news = 0;
  for (const row of [...rows.children]) {
    writeTimes(row);
    const here = $(row.id);
    if (!here) { news += 1; continue; }
    const box = here.querySelector("input"), other = row.querySelector("input");
    if (box && other) other.checked = box.checked;
    if (here.innerHTML === row.innerHTML) continue;
    const copy = document.importNode(row, true);
    if (box && other) copy.querySelector("input").checked = box.checked;
    if (here.classList.contains("cursor")) copy.classList.add("cursor");
    here.replaceWith(copy);
  }
  if (news) {
    fresh = rows;
    $("show-news").textContent = news + " new";
    $("news").hidden = false;
  }
}
if ($("show-news")) $("show-news").onclick = () => {
  if (fresh) $("rows").replaceChildren(...document.importNode(fresh, true).children);
  $("news").hidden = true;
};

// ---- acts: each is a call of the API, after its consequence was read
function ask(title, text, reason) {
  $("dialog-title").textContent = title;
  $("dialog-text").textContent = text;
  $("dialog-reason").hidden = !reason;
  const field = $("dialog-reason").querySelector("input");
  field.value = "";
  $("dialog").returnValue = "";
  $("dialog").showModal();
  return new Promise((told) => {
    $("dialog").onclose = () => told($("dialog").returnValue === "yes" ? { reason: field.value } : null);
  });
}
async function call(method, path, body) {
  const answer = await fetch(path, {
    method, headers: headers({ "Content-Type": "application/json" }), body: method === "GET" ? undefined : JSON.stringify(body || {}),
  });
  const text = await answer.text();
  const found = text ? JSON.parse(text) : null;
  if (!answer.ok) throw new Error(found && found.detail ? found.detail : "HTTP " + answer.status);
  return found;
}
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-act]");
  if (!button) return;
  const [method, path] = button.dataset.act.split(" ");
  const said = await ask(button.dataset.title, button.dataset.ask, "reason" in button.dataset);
  if (!said) return;
  button.disabled = true;
  complain("");
  try {
    const body = button.dataset.body ? JSON.parse(button.dataset.body) : {};
    if ("reason" in button.dataset && said.reason) body.reason = said.reason;
    await call(method, path, body);
  } catch (error) { complain(error.message); }
  button.disabled = false;
  button.blur();
  refresh();
});
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-bulk]");
  if (!button) return;
  const chosen = [...document.querySelectorAll("[name=job]:checked")].map((box) => box.value);
  button.disabled = true;
  complain("");
  try { await actOnMany(button, chosen); } catch (error) { complain(error.message); }
  button.disabled = false;
  refresh();
});
async function actOnMany(button, chosen) {
  const act = button.dataset.bulk, done = act === "cancel" ? ["succeeded", "failed", "cancelled"] : [];
  let jobs = chosen.map((id) => ({ id, name: $("job-" + id).querySelector("a").textContent }));
  if (!chosen.length) {
    let cursor = "";
    do {
      button.textContent = jobs.length + " found…";
      const more = new URLSearchParams(button.dataset.query);
      more.set("limit", "500");
      if (cursor) more.set("cursor", cursor);
      const found = await call("GET", "/v1/jobs?" + more);
      jobs.push(...found.items.filter((job) => act === "cancel" ? !done.includes(job.state) : ["failed", "cancelled"].includes(job.state)));
      cursor = found.next;
    } while (cursor);
  }
  const word = act === "cancel" ? "Cancel" : "Retry";
  button.textContent = word + "…";
  if (!jobs.length) { complain("No job that matches can be " + (act === "cancel" ? "cancelled" : "retried") + "."); return; }
  const sample = jobs.slice(0, 5).map((job) => job.name).join(", ") + (jobs.length > 5 ? " and " + (jobs.length - 5) + " more" : "");
  const said = await ask(word + " " + jobs.length + (jobs.length === 1 ? " job" : " jobs"), sample, act === "cancel");
  if (!said) return;
  const refused = [];
  for (let at = 0; at < jobs.length; at += 500) {
    button.textContent = at + " of " + jobs.length;
    const body = { ids: jobs.slice(at, at + 500).map((job) => job.id) };
    if (act === "cancel" && said.reason) body.reason = said.reason;
    const answer = await call("POST", "/v1/jobs/" + act, body);
    refused.push(...answer.items.filter((each) => each.error));
  }
  button.textContent = word + "…";
  if (refused.length) complain(refused.length + " of " + jobs.length + " were refused: " + (refused[0].error.detail || refused[0].error));
}
document.addEventListener("click", async (event) => {
  if (event.target.id !== "sign-out") return;
  await fetch("/sign-out", { method: "POST", headers: headers() });
  localStorage.removeItem("holdfast-proof");
  location.replace("/sign-in");
});

// ---- the output of a job
const logBox = $("log");
if (logBox) followOutput();
async function followOutput() {
  let over = false, wait = 1;
  while (!over) {
    const stop = new AbortController();
    try {
      await listen(logBox.dataset.stream, stop.signal, (kind, data) => {
        if (kind === "lines") addLines(data.html);
        if (kind === "end") over = true;
        if (kind === "problem") { over = true; complain(data.detail); }
        wait = 1;
      });
    } catch (error) { $("log-note").textContent = "The output is not followed now: " + error.message; }
    if (over) return;
    await new Promise((go) => setTimeout(go, wait * 1000));
    wait = Math.min(10, wait * 2);
    logBox.replaceChildren();  // the stream begins anew with its last part
  }
}
function addLines(html) {
  const atEnd = logBox.scrollHeight - logBox.scrollTop - logBox.clientHeight < 40;
  const piece = document.createElement("template");
  piece.innerHTML = html;  // drawn by the server, which escapes all that a job printed
  logBox.append(piece.content);
  const many = logBox.childElementCount - MAX_LINES;
  if (many > 0 && atEnd) {
    const range = document.createRange();
    range.setStartBefore(logBox.firstChild);
    range.setEndAfter(logBox.children[many - 1]);
    range.deleteContents();
  }
  if (atEnd) logBox.scrollTop = logBox.scrollHeight;
}

// ---- keys: / finds, j and k move, x chooses, Enter opens
document.addEventListener("keydown", (event) => {
  if (event.target.matches("input, textarea, select") || event.ctrlKey || event.metaKey || event.altKey) return;
  const rows = [...document.querySelectorAll("tbody tr")];
  const at = rows.findIndex((row) => row.classList.contains("cursor"));
  if (event.key === "/") { event.preventDefault(); $("search").focus(); }
  if ((event.key === "j" || event.key === "k") && rows.length) {
    const next = Math.max(0, Math.min(rows.length - 1, at + (event.key === "j" ? 1 : -1)));
    if (at >= 0) rows[at].classList.remove("cursor");
    rows[next].classList.add("cursor");
    rows[next].scrollIntoView({ block: "nearest" });
  }
  if (event.key === "x" && at >= 0 && rows[at].querySelector("[type=checkbox]")) rows[at].querySelector("[type=checkbox]").click();
  if (event.key === "Enter" && at >= 0 && rows[at].querySelector("a")) rows[at].querySelector("a").click();
});

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
