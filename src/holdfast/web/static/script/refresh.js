// ---- reading the page anew
let reading = false, again = false, fresh = null, acted = false;
async function refresh() {
  if (reading) { again = true; return; }
  reading = true;
  try {
    const answer = await fetch(location.href, { cache: "no-store" });
    if (answer.status === 401) { location.replace("/sign-in"); return; }
    if (answer.ok) place(new DOMParser().parseFromString(await answer.text(), "text/html"));
    document.dispatchEvent(new Event("placed"));
  } catch (error) { /* the next look finds it */ }
  reading = false;
  readAt = Date.now();
  if (again) { again = false; refresh(); } else acted = false;
}
function place(page) {
  document.body.dataset.seen = page.body.dataset.seen;
  document.title = page.title;  // it and the first place count what needs a person
  const now = '.places a[href="/"]';
  document.querySelector(now).innerHTML = page.querySelector(now).innerHTML;
  const under = document.querySelector("[data-part]:hover"), top = under && under.getBoundingClientRect().top;
  document.documentElement.classList.toggle("still", !!under);
  const parts = [...page.querySelectorAll("[data-part]")], ids = new Set(parts.map((part) => part.id));
  for (const here of document.querySelectorAll("[data-part]")) if (!ids.has(here.id)) here.remove();
  let last = null;
  for (const part of parts) {
    const here = $(part.id);
    if (here) swap(here, document.importNode(part, true));
    else if (last) $(last).after(document.importNode(part, true));
    last = part.id;
  }
  if (under && $(under.id)) scrollBy({ top: $(under.id).getBoundingClientRect().top - top, behavior: "instant" });
  const rows = page.querySelector("[data-rows]");
  if (rows && $("rows")) placeRows(rows);
  else if (rows) location.reload();  // the list was empty
}
if (document.querySelector("[data-late]")) refresh();  // a part took longer than one waits for a page
function swap(here, part) {
  writeTimes(part);
  decorate(part);
  writePlots(part);
  carry(here, part);
  if (here.isEqualNode(part)) return;
  if (here.matches(":active")) soon();  // a click that has begun is finished first
  else if (acted || !keepRows(here, part)) here.replaceWith(part);
}
// What is read stays where it is: while the pointer or the keyboard is in a list, its rows change in place, and what would
// move the row under the pointer waits until the list is left. Returns whether the part is kept.
function keepRows(here, part) {
  const old = nameRows(here), next = nameRows(part), held = here.querySelector(":focus-visible");
  if (!held && !(old.size && here.matches(":hover"))) return false;
  const at = here.querySelector("tr:hover, li:hover");
  let above = !!at, waits = [...old.keys()].join("\n") !== [...next.keys()].join("\n");
  for (const [name, row] of old) {
    const other = next.get(name), height = row.offsetHeight;
    if (row === at) above = false;
    if (!other || row.contains(held) || row.isEqualNode(other)) continue;
    row.replaceWith(other);
    if (above && other.offsetHeight !== height) { other.replaceWith(row); waits = true; }
  }
  const news = [...next.keys()].filter((name) => !old.has(name)).length;
  $("later").textContent = (news ? news + " new" : "changes") + ", shown when you leave the list";
  $("later").hidden = !waits;
  for (const left of ["mouseleave", "focusout"]) here.addEventListener(left, leave, { once: true });
  return true;
}
function leave() {
  $("later").hidden = true;
  soon();
}
function nameRows(part) {
  const named = new Map();
  for (const row of part.querySelectorAll("tbody tr, .needs > li")) {
    const link = row.querySelector("a[href]");
    let name = row.id || (link ? link.getAttribute("href") : row.firstElementChild.textContent);
    while (named.has(name)) name += "+";
    named.set(name, row);
  }
  return named;
}
// What a person chose stays: ticks, the row of the keys, what was opened.
function carry(here, part) {
  for (const box of here.querySelectorAll("[data-pick]:checked")) {
    const other = part.querySelector('[data-pick][value="' + CSS.escape(box.value) + '"]');
    if (other) other.checked = true;
  }
  const at = [...here.querySelectorAll("tbody tr")].findIndex((row) => row.classList.contains("cursor"));
  if (at >= 0 && part.querySelectorAll("tbody tr")[at]) part.querySelectorAll("tbody tr")[at].classList.add("cursor");
  const opened = [...here.querySelectorAll("details")];
  part.querySelectorAll("details").forEach((each, n) => { if (opened[n]) each.open = opened[n].open; });
}
// Rows that are there change in place. New rows come by themselves into a list that no person points at, is in or has read on
// in; into another they are announced, because a list that moves under the pointer is clicked wrongly.
function placeRows(rows) {
  let news = 0;
  for (const row of [...rows.children]) {
    writeTimes(row);
    labelCells(row, $("rows").closest("table"));
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
    if ($("news").hidden && scrollY < 80 && !$("rows").matches(":hover, :focus-within, :has(:checked, .cursor)")) { showNews(); return; }
    $("show-news").textContent = news + " new";
    $("news").hidden = false;
  }
}
if ($("show-news")) $("show-news").onclick = showNews;
function showNews() {
  if (fresh) $("rows").replaceChildren(...document.importNode(fresh, true).children);
  for (const row of $("rows").rows) labelCells(row, row.closest("table"));
  for (const table of document.querySelectorAll("table")) {
    const [at, down] = (sessionStorage.getItem(orderKey(table)) || "").split(" ");
    if (at) sortRows(table, Number(at), down);
  }
  $("news").hidden = true;
}
