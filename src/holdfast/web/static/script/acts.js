// ---- acts: each is a call of the API, after its consequence was read
// An act is JSON: method, path, title, ask; reason, fields, body, undo, shows.
let sending = false;
function drawField(field) {
  const label = document.createElement("label"), many = field.kind === "area";
  const input = document.createElement(many ? "textarea" : field.kind === "choice" ? "select" : "input");
  label.textContent = field.label + " ";
  if (field.kind === "check") { input.type = "checkbox"; label.className = "check"; }
  if (field.kind === "number") input.inputMode = "decimal";
  for (const each of field.choices || []) input.append(new Option(each));
  input.name = field.name;
  if (field.kind === "check") input.defaultChecked = !!field.value;
  else if (field.kind === "choice") input.value = field.value || input.value;
  else input.defaultValue = field.value || "";
  if (field.hint) input.placeholder = field.hint;
  input.required = !!field.needed;
  input.autocomplete = "off";
  input.dataset.kind = field.kind || "text";
  if (field.name === "reason") { label.id = "dialog-reason"; input.maxLength = 512; }
  label.append(input);
  return label;
}
// The body that the fields make. An empty field is left out; a setting (`set.x`) that was emptied is unset, and one that was left is not sent.
function readFields(root, body) {
  for (const input of root.querySelectorAll("[name]")) {
    const kind = input.dataset.kind, text = input.value.trim(), path = input.name.split("."), set = path[0] === "set";
    if (kind === "check" ? input.checked === input.defaultChecked && (set || !input.checked) : set ? text === input.defaultValue : !text) continue;
    if (set && !text) { (body.unset = body.unset || []).push(path[1]); continue; }
    let place = body;
    for (const part of path.slice(0, -1)) place = place[part] = place[part] || {};
    place[path.at(-1)] = kind === "check" ? input.checked : kind === "number" && isFinite(text) ? Number(text)
      : kind === "list" ? text.split(",").map((each) => each.trim()).filter(Boolean) : input.value;
  }
  return body;
}
function ask(act, send) {
  const fields = [...(act.fields || []), ...(act.reason ? [{ name: "reason", label: "Reason" }] : [])];
  $("dialog-title").textContent = act.title;
  $("dialog-text").textContent = act.ask;
  $("dialog-fields").replaceChildren(...fields.map(drawField));
  for (const id of ["dialog-said", "dialog-shown", "dialog-progress"]) $(id).hidden = true;
  $("dialog-yes").hidden = false;
  $("dialog-yes").textContent = act.title.split(" ").length < 4 ? act.title : "Do it";
  $("dialog").showModal();
  return new Promise((told) => {
    let result = null;
    $("dialog").onclose = () => told(result);
    $("dialog").querySelector("form").onsubmit = async (event) => {
      if (event.submitter && event.submitter.value !== "yes") return;
      event.preventDefault();
      if (sending) return;
      sending = $("dialog-yes").disabled = true;
      $("dialog-said").hidden = true;
      try {
        result = { answer: await send(readFields($("dialog-fields"), structuredClone(act.body || {}))) };
        if (act.shows) show(act, result.answer); else $("dialog").close();
      } catch (error) { refuse(error); }
      sending = $("dialog-yes").disabled = false;
    };
  });
}
function refuse(error) {
  $("dialog-said").textContent = error.message;
  $("dialog-said").hidden = false;
  const named = error.field && $("dialog-fields").querySelector('[name="' + CSS.escape(error.field) + '"], [name$=".' + CSS.escape(error.field) + '"]');
  if (named) named.focus();
}
// What an answer says once: a secret, or how a test went.
function show(act, answer) {
  const shown = answer && answer[act.shows];
  $("dialog-shown").textContent = shown || ("delivered" in answer ? "It arrived after " + answer.seconds + " s." : "Done.");
  $("dialog-shown").hidden = false;
  $("dialog-yes").hidden = true;
  $("dialog-fields").replaceChildren();
}
async function call(method, path, body) {
  const answer = await fetch(path, {
    method, headers: headers({ "Content-Type": "application/json" }), body: method === "GET" ? undefined : JSON.stringify(body || {}),
  });
  const text = await answer.text();
  const found = text ? JSON.parse(text) : null;
  if (!answer.ok) {
    const error = new Error(found && found.detail ? found.detail : "HTTP " + answer.status);
    error.field = found && found.field;
    throw error;
  }
  return found;
}
// What was done is said until it is closed, with the way back where there is one.
function tell(text, undo) {
  $("told").querySelector("span").textContent = text;
  $("undo").hidden = !undo;
  $("undo").onclick = async () => {
    $("undo").disabled = true;
    try { await undo(); tell("Undone: " + text); } catch (error) { complain(error.message); }
    $("undo").disabled = false;
    acted = true;
    refresh();
  };
  $("told").hidden = false;
}
if ($("told-over")) $("told-over").onclick = () => { $("told").hidden = true; };
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-act]");
  if (!button) return;
  const act = JSON.parse(button.dataset.act), undo = act.undo;
  let sent = {};
  complain("");
  const done = await ask(act, ({ path = {}, ...body }) =>
    call(act.method, act.path.replace(/\{(\w+)\}/g, (_, name) => encodeURIComponent(path[name] || "")), sent = body));
  button.blur();
  if (!done) return;
  tell(act.title + ": done.", undo && (() => call(undo.method, undo.path, narrow(undo.body, sent))));
  acted = true;
  refresh();
});
// Of settings an undo brings back only those that were changed, because others may be another person's since.
function narrow(back, { set = {}, unset = [] }) {
  if (!back.set && !back.unset) return back;
  const changed = (name) => name in set || unset.includes(name);
  return { set: Object.fromEntries(Object.entries(back.set || {}).filter(([name]) => changed(name))), unset: (back.unset || []).filter(changed) };
}
// ---- acts on many rows, on those that are chosen or on all that match
// A bulk act is JSON: verb, noun, ask, reason, fields; many (a path that takes ids) or each ({} is the row's key); find, states; undo.
// A row says which of them it takes in its state, and with which body each is taken back, where one call can do that.
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-bulk]");
  if (!button) return;
  button.disabled = true;
  complain("");
  try { await actOnMany(JSON.parse(button.dataset.bulk), button); } catch (error) { complain(error.message); }
  button.disabled = false;
  acted = true;
  refresh();
});
async function findAll(act, button) {
  const word = button.textContent, found = [];
  for (let cursor = ""; cursor !== null;) {
    button.textContent = found.length + " found…";
    const page = await call("GET", act.find + (act.find.includes("?") ? "&" : "?") + "limit=500" + (cursor && "&cursor=" + encodeURIComponent(cursor)));
    found.push(...page.items.filter((each) => each.takes || act.states.includes(each.state)).map(({ id, name, takes }) => ({ key: id, name, takes })));
    cursor = page.next;
  }
  button.textContent = word;
  return found;
}
async function actOnMany(act, button) {
  const boxes = [...document.querySelectorAll("[data-pick]:checked")];
  let rows = boxes.map((box) => ({ key: box.value, name: box.getAttribute("aria-label"), takes: JSON.parse(box.dataset.takes || "null") }));
  if (!rows.length && act.find) rows = await findAll(act, button);
  rows = rows.filter((row) => !row.takes || act.verb in row.takes);
  if (!rows.length) { complain(boxes.length || act.find ? "No " + act.noun + " that " + (boxes.length ? "is chosen" : "matches") + " can be taken for this." : "Choose rows first."); return; }
  const names = rows.slice(0, 5).map((row) => row.name).join(", ") + (rows.length > 5 ? " and " + (rows.length - 5) + " more" : "");
  const title = act.verb + " " + rows.length + " " + act.noun + (rows.length === 1 ? "" : "s");
  const done = [], refused = [];
  const said = await ask({ title, ask: (boxes.length ? "" : "All that match: ") + names + ". " + act.ask, reason: act.reason, fields: act.fields }, (body) => sendMany(act, rows, body, done, refused));
  if (!said) return;
  for (const box of boxes) box.checked = false;
  if (refused.length) complain(refused.length + " of " + rows.length + " were refused: " + refused[0]);
  const undo = act.undo && done.length && done.every((row) => row.takes && row.takes[act.verb]) && (async () => {
    const bad = [];
    await sendMany({ each: act.undo, back: act.verb }, done, {}, [], bad);
    if (bad.length) throw new Error(bad.length + " of " + done.length + " were refused: " + bad[0]);
  });
  tell(act.verb + ": " + done.length + " of " + rows.length + " " + act.noun + "s.", undo);
}
// Calls that take one row each go a few at once: a browser gives an origin six connections, of which the stream has one.
async function sendMany(act, rows, body, done, refused) {
  const bar = $("dialog-progress"), step = act.many ? 500 : 1, send = act.many ? sendIds : sendOne;
  let at = 0;
  bar.max = rows.length;
  bar.hidden = false;
  const work = async () => {
    for (let part; (part = rows.slice(at, at += step)).length; bar.value = done.length + refused.length) await send(act, part, body, done, refused);
  };
  await Promise.all(Array.from({ length: act.many ? 1 : 4 }, work));
}
async function sendIds(act, part, body, done, refused) {
  const answer = await call("POST", act.many, { ...body, ids: part.map((row) => row.key) });
  const bad = new Map(answer.items.filter((each) => each.problem).map((each) => [each.id, each.problem.detail]));
  refused.push(...bad.values());
  done.push(...part.filter((row) => !bad.has(row.key)));
}
async function sendOne(act, [row], body, done, refused) {
  const [method, path] = act.each.split(" ");
  try { await call(method, path.replace("{}", encodeURIComponent(row.key)), act.back ? row.takes[act.back] : body); done.push(row); } catch (error) { refused.push(error.message); }
}
document.addEventListener("click", async (event) => {
  if (event.target.id !== "sign-out") return;
  await fetch("/sign-out", { method: "POST", headers: headers() });
  localStorage.removeItem("holdfast-proof");
  location.replace("/sign-in");
});
