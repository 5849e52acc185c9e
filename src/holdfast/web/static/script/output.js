// ---- the output of a job
// The page keeps a bounded number of lines. It follows until someone reads: then what comes waits, and a pill counts it.
const logBox = $("log");
const KEPT_LINES = 3000, STREAMS_A_BROWSER = 3, FRAME_MS = 40;
let following = true, hole = false, missed = 0, waiting = [], stopOutput = null, ended = false;
function beginOutput() {
  const { line, at, begin, until, find } = logBox.dataset;
  logBox.onscroll = onScroll;
  logBox.onmouseover = (event) => {
    const row = event.target.closest("[data-at]");
    if (row && !row.title) row.title = sayPlace(row);
  };
  $("follow").onclick = follow;
  document.addEventListener("selectionchange", () => { if (following && chosen()) pause(); });
  document.addEventListener("visibilitychange", () => { if (document.hidden) { hole = true; if (stopOutput) stopOutput.abort(); } });
  if (find) searchOutput(find);
  if (line) goTo(line, at);
  else if (begin) showSpan(begin, until);
  else keepOutput();
}
const clock = (micros) => {
  const at = new Date(micros / 1000), two = (n) => String(n).padStart(2, "0");
  return two(at.getHours()) + ":" + two(at.getMinutes()) + ":" + two(at.getSeconds()) + "." + String(at.getMilliseconds()).padStart(3, "0");
};
function sayPlace(row) {
  const [attempt, rank, stream] = row.id.slice(1).split(".");
  return "attempt " + attempt + ", rank " + rank + ", " + (stream === "e" ? "stderr" : "stdout") + ", "
    + exactly.format(new Date(row.dataset.at / 1000));
}
function read(html) {
  const piece = document.createElement("template");
  piece.innerHTML = html;  // drawn by the server, which escapes all that a job printed
  for (const row of piece.content.children) if (row.dataset.at > 0) row.firstChild.textContent = clock(row.dataset.at);
  return piece.content;
}
// ---- following
const sleep = (ms) => new Promise((go) => setTimeout(go, ms));
async function keepOutput() {
  for (let wait = 1; !ended;) {
    if (document.hidden || (!following && hole)) { await sleep(200); continue; }
    try { await withTurn(streamOutput, pollOutput); wait = 1; } catch (error) {
      if (error.name === "AbortError") continue;
      $("log-note").textContent = "The output is not followed now: " + error.message;
    }
    if (!ended) await sleep(wait * 1000);
    wait = 2;
  }
}
// A browser gives six connections to a server, so that few of its pages hold one for output; the others ask each second.
async function withTurn(hold, ask) {
  for (let n = 0; n < STREAMS_A_BROWSER; n += 1) {
    const held = await navigator.locks.request("holdfast-output-" + n, { ifAvailable: true }, (lock) => lock && hold().then(() => true));
    if (held) return;
  }
  await ask();
}
async function streamOutput() {
  stopOutput = new AbortController();
  let silentAt = Date.now();
  const silent = setInterval(() => { if (Date.now() - silentAt > 4000) stopOutput.abort(); }, 1000);
  try {
    await listen(logBox.dataset.stream, stopOutput.signal, (kind, data) => {
      silentAt = Date.now();
      if (kind === "lines") { addLines(data); return sleep(FRAME_MS); }  // the page draws, and hears what its user does
      if (kind === "end") ended = true;
      if (kind === "problem") { ended = true; complain(data.detail); }
    });
  } finally { clearInterval(silent); }
  if (ended) { logBox.dataset.read = "all"; $("log-note").textContent = "The job has ended; this is all."; }
}
async function pollOutput() {
  addLines({ html: (await part({})).html, anew: true, count: 0 });
  for (let before = ""; !document.hidden && (following || !hole);) {
    await sleep(1000);
    const last = newestLine(), html = (await part(last ? { after: last.id, at: last.dataset.at } : {}, last)).html;
    if (html !== before) addLines({ html, anew: false, count: Math.max(0, html.split("<div id").length - 2) });
    before = html;
  }
}
function newestLine() {
  const box = document.createElement("template");
  box.innerHTML = waiting.length ? waiting[waiting.length - 1].html : "";
  return [...box.content.querySelectorAll("[id]")].pop() || [...logBox.querySelectorAll("[id]")].pop();
}
function addLines(data) {
  logBox.dataset.read = "";  // an empty box says that nothing was printed, but not before the first answer
  if (!following && logBox.childElementCount) {
    if (data.anew) { waiting = []; hole = true; }
    waiting.push(data);
    missed += data.count;
    for (let kept = 0, n = waiting.length - 1; n >= 0; n -= 1) {
      kept += waiting[n].count;
      if (kept > KEPT_LINES) { waiting.splice(0, n); hole = true; break; }
    }
    showPill();
    return;
  }
  if (data.anew) logBox.replaceChildren();
  hole = false;
  put(data.html);
}
function put(html) {
  const rows = read(html);
  for (const row of [...rows.children]) {
    const here = row.id && ($(row.id) || rows.getElementById(row.id));  // a line that was shown before it had its last text
    if (here && here !== row) here.replaceWith(row);
  }
  logBox.append(rows);
  cut(true);
  logBox.scrollTop = logBox.scrollHeight;
}
function cut(atTop) {
  const many = logBox.childElementCount - KEPT_LINES;
  if (many <= 0) return;
  const range = document.createRange();
  if (atTop) { range.setStartBefore(logBox.firstChild); range.setEndAfter(logBox.children[many - 1]); }
  else { range.setStartBefore(logBox.children[KEPT_LINES]); range.setEndAfter(logBox.lastChild); hole = true; }
  range.deleteContents();
}
function showPill() {
  const pill = $("follow");
  pill.hidden = following;
  pill.textContent = (missed ? missed.toLocaleString().replace(/\W/g, "\u2009") + (missed === 1 ? " new line" : " new lines") + " · " : "") + "Follow ↓";
}
function follow() {
  const { line, begin } = logBox.dataset, came = waiting;
  if (line || begin) { location.assign($("live-link").href); return; }
  following = true;
  waiting = [];
  missed = 0;
  showPill();
  if (hole) logBox.replaceChildren();  // lines are missing between what is shown and what comes
  hole = false;
  put(came.map((each) => each.html).join(""));
  if (logBox.childElementCount) return;
  if (ended) { ended = false; keepOutput(); } else if (stopOutput) stopOutput.abort();
}
// ---- reading
const atEnd = () => logBox.scrollHeight - logBox.scrollTop - logBox.clientHeight < 24;
const chosen = () => !getSelection().isCollapsed && logBox.contains(getSelection().anchorNode);
let turning = false;
function pause() {
  following = false;
  showPill();
}
async function onScroll() {
  const placed = logBox.dataset.line || logBox.dataset.begin;
  if (following && !atEnd()) pause();
  else if (!following && atEnd() && !chosen() && !hole && !placed) follow();
  if (turning || following) return;
  turning = true;
  try {
    if (logBox.scrollTop < 200) await readBack();
    else if (atEnd() && (hole || placed)) await readOn();
  } catch (error) { complain(error.message); }
  turning = false;
}
const attemptOf = (row) => row.id.slice(1).split(".")[0];
const part = (more, row) => call("GET", logBox.dataset.lines + "&" + new URLSearchParams(row ? { ...more, attempt: attemptOf(row) } : more));
function readNew(html) {
  const rows = read(html);
  for (const row of [...rows.children]) if (row.id && $(row.id)) row.remove();
  return rows;
}
async function readBack() {
  const first = logBox.querySelector("[id]");
  if (!first || logBox.dataset.begin) return;
  for (let tail = 65536; tail <= 4194304 * 2; tail *= 8) {
    const rows = readNew((await part({ before: first.id, at: first.dataset.at, tail }, first)).html);
    if (rows.childElementCount) { prepend(rows); return; }
  }
  const before = attemptOf(first) - 1;
  if (before > 0 && !/attempt=\d/.test(logBox.dataset.lines)) prepend(readNew((await part({ attempt: before })).html));
}
function prepend(rows) {
  const height = logBox.scrollHeight;
  logBox.prepend(rows);
  logBox.scrollTop += logBox.scrollHeight - height;
  cut(false);
}
async function readOn() {
  const last = [...logBox.querySelectorAll("[id]")].pop();
  if (last) logBox.append(readNew((await part({ after: last.id, at: last.dataset.at, until: logBox.dataset.until }, last)).html));
}
async function goTo(id, at) {
  pause();
  hole = true;
  logBox.dataset.line = id;
  if (stopOutput) stopOutput.abort();
  try {
    const row = { id }, before = await part({ before: id, at }, row), after = await part({ after: id, at }, row);
    logBox.dataset.read = "";
    logBox.replaceChildren(read(before.html));
    logBox.append(readNew(after.html));
    id = after.line || id;
  } catch (error) { complain(error.message); }
  const line = $(id);
  if (line) { line.classList.add("here"); line.scrollIntoView({ block: "center" }); }
}
async function showSpan(begin, until) {
  pause();
  hole = true;
  try {
    logBox.replaceChildren(read((await part({ begin, until })).html));
    logBox.dataset.read = "";
  } catch (error) { complain(error.message); }
}
// ---- searching: the server finds, and a click goes to the place
async function searchOutput(pattern) {
  const box = $("found");
  try {
    await listen(box.dataset.stream, undefined, (kind, data) => {
      if (kind === "found") box.append(read(data.html));
      if (kind === "end") $("found-note").textContent = data.said;
      if (kind === "problem") $("found-note").textContent = data.detail;
    });
  } catch (error) { $("found-note").textContent = error.message; }
}
if ($("found")) $("found").addEventListener("click", (event) => {
  const link = event.target.closest("a.found");
  if (!link || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  for (const each of document.querySelectorAll("a.found.here")) each.classList.remove("here");
  link.classList.add("here");
  history.replaceState(null, "", link.href);
  goTo(link.dataset.line, link.dataset.at);
});
if (logBox) beginOutput();
