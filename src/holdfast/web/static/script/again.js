// ---- run again with changes: the spec that a form changes, submitted as a new job
// The words of a command, as a shell would read them.
function splitWords(text) {
  const words = [];
  let word = null, quote = "";
  for (let at = 0; at < text.length; at += 1) {
    const char = text[at];
    if (quote) {
      if (char === quote) quote = "";
      else if (char === "\\" && quote === '"' && '"\\$`'.includes(text[at + 1])) word += text[at += 1];
      else word += char;
    } else if (/\s/.test(char)) { if (word !== null) words.push(word); word = null; }
    else if (char === "'" || char === '"') { quote = char; word = word || ""; }
    else if (char === "\\") word = (word || "") + (text[at += 1] || "");
    else word = (word || "") + char;
  }
  if (quote) throw new Error("a quote is not closed");
  return word === null ? words : [...words, word];
}
function readPairs(text) {
  const pairs = {};
  for (const line of text.split("\n").filter((each) => each.trim())) {
    const at = line.indexOf("=");
    if (at < 1) throw new Error("a line is NAME=value, not " + line);
    pairs[line.slice(0, at).trim()] = line.slice(at + 1);
  }
  return pairs;
}
function readSpec(form) {
  const spec = JSON.parse(form.dataset.base);
  for (const input of form.querySelectorAll("[data-kind]")) {
    const path = input.name.split("."), last = path.pop(), text = input.value.trim();
    let place = spec;
    for (const part of path) place = place[part] = place[part] || {};
    try {
      if (input.dataset.kind === "pairs") place[last] = readPairs(input.value);
      else if (!text) delete place[last];
      else if (last === "argv") place[last] = splitWords(text);
      else place[last] = input.dataset.kind === "number" && isFinite(text) ? Number(text) : text;
    } catch (error) { error.field = input.name; throw error; }
    for (const part of path) if (!Object.keys(spec[part]).length) delete spec[part];
  }
  return spec;
}
function refuseAt(form, error) {
  const field = error.field || "", inputs = [...form.querySelectorAll("[data-kind]")];
  const input = inputs.find((each) => field === each.name) || inputs.find((each) => field.split(/[.[]/)[0] === each.name.split(".")[0]);
  const said = input ? input.parentNode.querySelector(".said") : $("again-said");
  said.textContent = error.message;
  said.hidden = false;
  if (input) { input.setAttribute("aria-invalid", "true"); input.focus(); }
}
if ($("again")) $("again").onsubmit = async (event) => {
  event.preventDefault();
  const form = event.target, button = form.querySelector("button.main");
  for (const each of form.querySelectorAll(".said")) each.textContent = "";
  for (const each of form.querySelectorAll("[aria-invalid]")) each.removeAttribute("aria-invalid");
  $("again-said").hidden = true;
  button.disabled = true;
  try {
    const made = await call("POST", "/v1/jobs", readSpec(form));
    location.assign("/jobs/" + made.id);
  } catch (error) { refuseAt(form, error); button.disabled = false; }
};
