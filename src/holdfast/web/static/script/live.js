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
      await take(kind ? kind[1] : "", data ? JSON.parse(data[1]) : null);  // a slow page is sent less
    }
  }
}

// ---- what has changed: one stream for all tabs of a browser
const follows = new Set(document.body.dataset.follows.split(" ").filter(Boolean));
const channel = new BroadcastChannel("holdfast");
let heardAt = Date.now(), readAt = 0, lost = false, due = null;
function hear(message) {
  heardAt = Date.now();
  if (lost) { lost = false; refresh(); }
  $("live").textContent = "live";
  $("live").className = "live on";
  const names = message.names || [];
  if (message.seen && message.seen !== document.body.dataset.seen) soon();
  if (names.includes("all") || names.some((name) => follows.has(name))) soon();
}
channel.onmessage = (event) => event.data.lost ? sayLost() : hear(event.data);
function sayLost() {
  lost = true;
  $("live").textContent = "no connection";
  $("live").className = "live off";
}
function soon() {
  if (document.hidden) return;
  due = due || setTimeout(() => { due = null; refresh(); }, Math.max(0, readAt + GATHER_MS - Date.now()));  // the first at once
}
async function hold() {
  for (;;) {
    const stop = new AbortController();
    const begunAt = Date.now();
    const silent = setInterval(() => { if (Date.now() - Math.max(heardAt, begunAt) > 4000) stop.abort(); }, 1000);
    try {
      await listen("/live", stop.signal, (kind, data) => {
        if (kind === "problem") throw new Error(data.detail);
        const message = data || {};  // when it opens, the word for all events so far, under which a page may have been drawn
        channel.postMessage(message);
        hear(message);
      });
    } catch (error) { /* tried again below; the mark at the top says that the page is not live */ }
    clearInterval(silent);
    channel.postMessage({ lost: true });
    sayLost();
    await new Promise((go) => setTimeout(go, AGAIN_SECONDS * 1000));
  }
}
navigator.locks.request("holdfast-live", hold);
setInterval(() => {
  if (Date.now() - heardAt >= GONE_SECONDS * 1000) sayLost();
}, 250);
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
const every = Number(document.body.dataset.every);
if (every) setInterval(() => { if (!document.hidden && !lost) refresh(); }, every * 1000);
