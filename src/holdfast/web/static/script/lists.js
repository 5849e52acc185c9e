// ---- lists: sorted by a column, filters that are completed, views that are kept under a name
// A click on a column's head sorts the rows that are shown; a page keeps its order while the tab is open.
const orderKey = (table) => "order " + location.pathname + " " + (table.closest("[data-part]") ? table.closest("[data-part]").id : "rows");
function cellValue(row, at) {
  const cell = row.cells[at], time = cell && cell.querySelector("time");
  if (!cell) return "";
  if (time) return Date.parse(time.dateTime);
  return readFigure(cell.textContent.trim());
}
// A figure as the server writes it ("1 h 04 m", "1.2 GiB", "$3 200", "6 of 8") as one number, or another text as it stands.
const UNITS = { ms: 0.001, s: 1, m: 60, min: 60, h: 3600, d: 86400, B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40 };
function readFigure(text) {
  if (!/^\$?\d[\d\u2009]*(\.\d+)?(\s|%|$)/.test(text)) return text.toLowerCase();
  let sum = 0;
  for (const [, figure, unit] of text.matchAll(/\$?(\d[\d\u2009]*(?:\.\d+)?)\s?([A-Za-z]*)/g)) {
    const number = parseFloat(figure.replaceAll("\u2009", ""));
    if (!(unit in UNITS)) return sum || number;
    sum += number * UNITS[unit];
  }
  return sum;
}
function sortRows(table, at, down) {
  const body = table.tBodies[0], rows = [...body.rows].map((row) => [cellValue(row, at), row]);
  rows.sort(([a], [b]) => (typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1) * (down ? -1 : 1));
  if (rows.some(([, row], n) => row !== body.rows[n])) body.append(...rows.map(([, row]) => row));
}
function decorate(root) {
  for (const table of root.querySelectorAll("table")) {
    if (!table.tHead || table.tHead.querySelector("button")) continue;
    const [at, down] = (sessionStorage.getItem(orderKey(table)) || "").split(" ");
    for (const head of table.tHead.querySelectorAll("th")) {
      if (!head.textContent.trim() || head.querySelector(".hidden")) continue;
      const button = document.createElement("button");
      button.type = "button";
      button.className = "order";
      button.append(...head.childNodes);
      head.append(button);
      if (at === String(head.cellIndex)) head.setAttribute("aria-sort", down ? "descending" : "ascending");
    }
    for (const row of table.tBodies[0] ? table.tBodies[0].rows : []) labelCells(row, table);
    if (at) sortRows(table, Number(at), down);
  }
}
// On a phone a row is a few lines, where each figure has the name of its column.
function labelCells(row, table) {
  for (const cell of row.cells) {
    const head = table.tHead && table.tHead.rows[0].cells[cell.cellIndex];
    if (head && cell.classList.contains("n") && cell.textContent.trim()) cell.dataset.label = head.textContent.trim();
  }
}
document.addEventListener("click", (event) => {
  const head = event.target.closest("th"), table = head && head.closest("table");
  if (!head || !event.target.closest(".order")) return;
  const down = head.getAttribute("aria-sort") === "ascending";
  for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  sessionStorage.setItem(orderKey(table), head.cellIndex + (down ? " down" : ""));
  sortRows(table, head.cellIndex, down);
});
decorate(document);
// Completion: the last word of a filter, from what the API has.
for (const input of document.querySelectorAll("[data-offers]")) {
  let offers = null;
  const complete = async () => {
    offers ??= call("GET", input.dataset.offers).catch(() => []);
    const words = await offers;
    const at = input.value.lastIndexOf(" ") + 1, before = input.value.slice(0, at), word = input.value.slice(at).toLowerCase();
    const kinds = [...new Set(words.map((each) => each.split(":")[0] + ":"))];
    const fitting = (word.includes(":") ? words : word ? [...kinds, ...words] : kinds).filter((each) => each.toLowerCase().startsWith(word) && each !== word);
    input.list.replaceChildren(...fitting.slice(0, 20).map((each) => new Option(before + each, before + each)));
  };
  input.addEventListener("input", complete);
  input.addEventListener("focus", complete);
}
// Views that are kept: a name and an address, in this browser.
function keptViews() {
  try { return JSON.parse(localStorage.getItem("views " + $("saved").dataset.key) || "{}"); } catch { return {}; }
}
function drawViews() {
  const views = keptViews(), parts = [];
  for (const [name, query] of Object.entries(views)) {
    const link = document.createElement("a"), drop = document.createElement("button");
    link.textContent = name;
    link.href = location.pathname + query;
    if (query === location.search) link.className = "here";
    drop.type = "button";
    drop.className = "drop";
    drop.textContent = "×";
    drop.setAttribute("aria-label", "Forget the view " + name);
    drop.onclick = () => keepViews(({ [name]: _, ...rest }) => rest);
    parts.push(link, drop);
  }
  $("saved").replaceChildren(...parts);
}
function keepViews(change) {
  localStorage.setItem("views " + $("saved").dataset.key, JSON.stringify(change(keptViews())));
  drawViews();
}
if ($("saved")) {
  drawViews();
  $("save-view").onclick = () => ask(
    { title: "Keep this view", ask: "It stands beside the others in this browser; its address can be sent to anybody.", fields: [{ name: "name", label: "Name", needed: true }] },
    async (body) => keepViews((views) => ({ ...views, [body.name]: location.search })),
  );
}
