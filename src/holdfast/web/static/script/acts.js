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
