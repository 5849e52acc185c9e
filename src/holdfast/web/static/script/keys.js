// ---- keys: / finds, j and k move, x chooses, Enter opens, c makes rows compact, Escape leaves, ? shows the keys
$("show-keys").onclick = () => $("keys").showModal();
$("compact").onchange = () => resizeRows($("compact").checked);
function resizeRows(compact) {
  localStorage.setItem("size", compact ? "compact" : "");
  sizeRows();
}
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && event.target.matches("input")) event.target.blur();
  if (event.target.matches("input, textarea, select") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (document.querySelector("dialog[open]")) return;
  if (event.key === "?") $("keys").showModal();
  if (event.key === "c") resizeRows(!$("compact").checked);
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
  if (event.key === "Enter" && at >= 0 && !event.target.closest("a, button, summary") && rows[at].querySelector("a")) rows[at].querySelector("a").click();
});
