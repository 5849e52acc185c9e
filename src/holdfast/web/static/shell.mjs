// A terminal in a running task, over the session that `holdfast shell` speaks too: a WebSocket whose messages begin with
// a channel (wire/sessions/frames.py). A link that breaks is made anew without a byte lost or doubled, each with a ticket
// of its own, which only a request with the proof gets.
import { Terminal } from "./kept/xterm-6.0.0.mjs";
import { FitAddon } from "./kept/addon-fit-0.11.0.mjs";

const STDIN = 0, STDOUT = 1, STDERR = 2, STATUS = 3, RESIZE = 4, TAKEN = 6, BEGUN = 7, NOTICE = 8, REFUSAL = 9;
const PROTOCOL = "v1.sessions.holdfast", REPLACED = 4002, DAMAGED = 4004, LEFT = 1000;
const ACK_BYTES = 64 << 10, PIECE_BYTES = 64 << 10, WINDOW_BYTES = 1 << 20, LINGER_MS = 600_000, WAITS = ["not_running", "conflict"];
const $ = (id) => document.getElementById(id);
const box = $("shell"), { job, rank, nonce } = box.dataset, path = `/v1/jobs/${job}/sessions/`;

// The terminal writes style elements, which the page's nonce allows, and style attributes, which nothing does: those are
// set as properties instead.
const make = document.createElement.bind(document);
document.createElement = (name, options) => {
  const made = make(name, options);
  if (name === "style") made.nonce = nonce;
  return made;
};
const plain = Element.prototype.setAttribute;
Element.prototype.setAttribute = function (name, value) {
  if (name === "style") this.style.cssText = value;
  else plain.call(this, name, value);
};

const decoder = new TextDecoder(), encoder = new TextEncoder();
const read = (bytes) => JSON.parse(decoder.decode(bytes));
const note = (text, state) => { $("shell-note").textContent = text; box.dataset.state = state; };
const terminal = new Terminal({
  fontFamily: getComputedStyle(box).fontFamily, fontSize: 13, scrollback: 10_000, minimumContrastRatio: 4.5, cursorBlink: false,
});
const fit = new FitAddon();
terminal.loadAddon(fit);
paint();
terminal.open(box);
fit.fit();
terminal.focus();
new ResizeObserver(() => fit.fit()).observe(box);
new MutationObserver(paint).observe(document.documentElement, { attributeFilter: ["class"] });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
terminal.attachCustomKeyEventHandler((event) => {
  if (event.key === "F6") return false;  // the way out for a person without a mouse
  if (event.ctrlKey && event.shiftKey && event.code === "KeyC") {
    if (event.type === "keydown") navigator.clipboard.writeText(terminal.getSelection());
    event.preventDefault();
    return false;
  }
  return !(event.ctrlKey && event.shiftKey && event.code === "KeyV");  // the browser pastes
});

function paint() {
  const probe = document.createElement("i");
  document.body.append(probe);
  const colour = (name) => { probe.style.color = `var(--${name})`; return getComputedStyle(probe).color; };
  const [black, red, green, yellow, blue, magenta, cyan, white] =
    ["free", "failed", "running", "draining", "starting", "magenta", "cyan", "text"].map(colour);
  terminal.options.theme = {
    background: colour("sunken"), foreground: white, cursor: colour("accent"), selectionBackground: colour("line"),
    black, red, green, yellow, blue, magenta, cyan, white, brightBlack: colour("dim"), brightRed: red, brightGreen: green,
    brightYellow: yellow, brightBlue: blue, brightMagenta: magenta, brightCyan: cyan, brightWhite: white,
  };
  probe.remove();
}

// ---- the session: counts of bytes each way, which outlive a link
let socket = null, session = "", life = "", got = 0, seen = 0, told = 0, sent = 0, taken = 0, unsent = [], waiting = [], over = false, opened = false;
// got: bytes that came; seen: those of them that are drawn. opened: this link has begun; what is typed before that waits.
const KEY = `shell ${job} ${rank}`;
session = sessionStorage.getItem(KEY) || "";

// Each frame carries the running CRC-32 of all frames that went its way over the link (SESSION-2).
const CRC = Uint32Array.from({ length: 256 }, (_, n) => { for (let k = 0; k < 8; k++) n = n & 1 ? 0xedb88320 ^ (n >>> 1) : n >>> 1; return n; });
let said = 0, heard = 0;
function sum(crc, channel, bytes) {
  crc = ~crc;
  crc = CRC[(crc ^ channel) & 255] ^ (crc >>> 8);
  for (const byte of bytes) crc = CRC[(crc ^ byte) & 255] ^ (crc >>> 8);
  return ~crc >>> 0;
}
function send(channel, bytes) {
  if (!socket || socket.readyState !== WebSocket.OPEN) return;
  const made = new Uint8Array(bytes.length + 5);
  said = sum(said, channel, bytes);
  made[0] = channel;
  new DataView(made.buffer).setUint32(1, said);
  made.set(bytes, 5);
  socket.send(made);
}
function write(bytes) {
  for (let at = 0; at < bytes.length; at += PIECE_BYTES) waiting.push(bytes.subarray(at, at + PIECE_BYTES));
  pour();
}
function pour() {
  while (opened && waiting.length && sent - taken + waiting[0].length <= WINDOW_BYTES) {
    const piece = waiting.shift();
    unsent.push([sent, piece]);
    sent += piece.length;
    send(STDIN, piece);
  }
}
function noteTaken(count) {
  taken = Math.max(taken, count);
  while (unsent.length && unsent[0][0] + unsent[0][1].length <= taken) unsent.shift();
  pour();
}
function goOn(begun) {
  session = begun.session;
  sessionStorage.setItem(KEY, session);
  if (begun.life !== life) {
    life = begun.life || "";
    seen = told = (begun.start || 0) - got + seen;
    got = begun.start || 0;
    sent = taken = begun.taken || 0;
    unsent = [];
  } else {
    seen = told = seen + Math.max(0, (begun.start || 0) - got);
    got = Math.max(got, begun.start || 0);
    noteTaken(begun.taken || 0);
    for (const [offset, piece] of unsent) send(STDIN, piece.subarray(Math.max(0, taken - offset)));
  }
  resize(terminal);
  opened = true;
  note(begun.watch ? "Another window has the keys of this shell; this one reads along." : "Connected.", "open");
  $("shell-end").hidden = false;
  pour();
}
function show(bytes) {
  got += bytes.length;
  terminal.write(bytes, () => {  // once it is drawn, so that a flood waits for the browser
    seen += bytes.length;
    if (seen - told < ACK_BYTES) return;
    told = seen;
    send(TAKEN, encoder.encode(JSON.stringify({ bytes: seen })));
  });
}
function resize({ rows, cols }) { send(RESIZE, encoder.encode(JSON.stringify({ rows, cols }))); }
terminal.onData((text) => write(encoder.encode(text)));
terminal.onBinary((text) => write(Uint8Array.from(text, (letter) => letter.charCodeAt(0))));
terminal.onResize(resize);

function end(text) {
  over = true;
  sessionStorage.removeItem(KEY);
  note(text, "over");
  $("shell-end").hidden = true;
  $("shell-again").hidden = false;
}
function sayEnd(status) {
  const problem = status.exit_code == null && status.signal == null && status.code;
  if (problem) return status.detail || status.code;
  return status.signal ? `The shell was ended by signal ${status.signal}.` : `The shell ended with exit code ${status.exit_code || 0}.`;
}

// ---- a link: a ticket, and a WebSocket that spends it
async function getTicket() {
  const answer = await fetch(path + "tickets", {
    method: "POST", headers: { "Content-Type": "application/json", "Holdfast-Proof": localStorage.getItem("holdfast-proof") || "" },
    body: JSON.stringify({ rank: Number(rank) }),
  });
  if (answer.status === 401) { location.replace("/sign-in"); throw new Error("signed out"); }
  const found = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(found.detail), { final: answer.status < 500 });
  return found.ticket;
}
// Returns when the link is over: true where another is to be tried.
async function link() {
  const ticket = await getTicket();
  return new Promise((done) => {
    let status = null;
    socket = new WebSocket(location.origin.replace(/^http/, "ws") + path + "open", [PROTOCOL, "ticket." + ticket]);
    socket.binaryType = "arraybuffer";
    said = heard = 0;
    socket.onopen = () => socket.send(JSON.stringify({
      kind: "shell", rank: Number(rank), tty: true, rows: terminal.rows, cols: terminal.cols, term: "xterm-256color", session, seen: got,
    }));
    socket.onmessage = (event) => {
      const bytes = new Uint8Array(event.data);
      if (bytes[0] === REFUSAL) { status = read(bytes.subarray(1)); socket.close(LEFT); return; }
      const payload = bytes.subarray(5);
      heard = sum(heard, bytes[0], payload);
      if (socket.readyState !== WebSocket.OPEN) return;
      if (heard !== new DataView(event.data).getUint32(1)) socket.close(DAMAGED);
      else if (bytes[0] === STDOUT || bytes[0] === STDERR) show(payload);
      else if (bytes[0] === BEGUN) goOn(read(payload));
      else if (bytes[0] === TAKEN) noteTaken(read(payload).bytes);
      else if (bytes[0] === NOTICE) note(decoder.decode(payload), "open");
      else if (bytes[0] === STATUS) { status = read(payload); socket.close(LEFT); }
    };
    socket.onclose = (event) => {
      if (over) return done(false);
      if (status && WAITS.includes(status.code)) { note(status.detail, "waits"); return done(true); }
      if (status && status.code === "session_ended" && !life) {  // of this tab's last visit
        session = "";
        return done(true);
      }
      if (status) { end(sayEnd(status)); return done(false); }
      if (event.code === REPLACED) { end("This shell goes on in another window."); return done(false); }
      note("The connection is lost; it is made anew.", "lost");
      done(true);
    };
  });
}
async function run() {
  let lostAt = Date.now(), pause = 100;
  over = false;
  while (!over) {
    try {
      const again = await link();
      if (!again) return;
      if (opened) [lostAt, pause] = [Date.now(), 100];
      opened = false;
    } catch (error) {
      if (error.final) { end(error.message); return; }
      note("The controller cannot be reached; the connection is made anew.", "lost");
    }
    if (box.dataset.state !== "waits" && Date.now() - lostAt > LINGER_MS) { end("The connection was lost for ten minutes."); return; }
    await new Promise((go) => setTimeout(go, pause));
    pause = box.dataset.state === "waits" ? 1000 : Math.min(2000, pause * 2);
  }
}
$("shell-again").onclick = () => {
  $("shell-again").hidden = true;
  [session, life, got, seen, told, sent, taken, unsent, waiting] = ["", "", 0, 0, 0, 0, 0, [], []];
  terminal.reset();
  run();
};
$("shell-end").onclick = () => { end("The shell was ended."); socket.close(LEFT); };
run();
