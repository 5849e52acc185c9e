// ---- plots: what a column stands for, and the words of the time's axis, which are of the viewer's zone. The table has both
function writePlots(root) {
  for (const plot of root.querySelectorAll(".plot")) {
    const axis = plot.querySelector(".times"), few = Number(plot.dataset.count) <= 24, days = plot.dataset.step === "day";
    const picture = plot.querySelector("svg"), table = plot.parentNode.querySelector("table");
    const zone = table.rows[0].cells;
    [...table.tBodies[0].rows].reverse().forEach((row) => {
      const column = document.createElementNS(picture.namespaceURI, "rect"), title = document.createElementNS(picture.namespaceURI, "title");
      column.setAttribute("x", row.dataset.x);
      column.setAttribute("width", row.dataset.width);
      column.setAttribute("height", 100);
      title.textContent = [...row.cells].map((cell, at) => (at ? zone[at].textContent + ": " : "") + cell.textContent).join("\n");
      column.append(title);
      picture.append(column);
      const begin = new Date(row.querySelector("time").dateTime), hour = begin.getHours();
      const at = Math.round(Number(row.dataset.x) / Number(row.dataset.width));
      if (days ? at % 5 : few ? hour % 3 : hour) return;
      const word = document.createElement("span");
      const short = few && hour ? { hour: "2-digit", minute: "2-digit" } : { weekday: days ? undefined : "short", day: "numeric", month: "short" };
      word.textContent = begin.toLocaleString(undefined, short);
      word.style.left = Number(row.dataset.x) / 10 + "%";
      axis.append(word);
    });
  }
}
writePlots(document);
