// The first part of the pages' script, which the server joins from the files of this folder. The script needs no library.
// The server draws every part; the script reads a page anew when something changed, and puts in place what differs.
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
for (const each of document.querySelectorAll("nav .here")) {  // a phone shows a part of a row of links
  const row = each.parentNode;
  row.scrollLeft = each.offsetLeft - row.offsetLeft - (row.clientWidth - each.offsetWidth) / 2;
}
function sizeRows() {
  document.documentElement.dataset.size = localStorage.getItem("size") || "";
  $("compact").checked = localStorage.getItem("size") === "compact";
}
sizeRows();
const exactly = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });  // one, because making one is slow
const briefly = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
function writeTimes(root) {
  for (const each of root.querySelectorAll("time[datetime]")) {
    each.title = exactly.format(new Date(each.dateTime));
    if ("plain" in each.dataset) each.textContent = briefly.format(new Date(each.dateTime));
  }
}
writeTimes(document);
function complain(text) {
  $("trouble").textContent = text;
  $("trouble").hidden = !text;
}
