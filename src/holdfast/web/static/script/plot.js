// ---- plots: what a column stands for, and the words of the time's axis, which are of the viewer's zone. The table has both
function writePlots(root) {
  for (const plot of root.querySelectorAll(".plot")) {
    const axis = plot.querySelector(".times"), few = Number(plot.dataset.count) <= 24, days = plot.dataset.step === "day";
    const picture = plot.querySelector("svg"), table = plot.parentNode.querySelector("table");
    const heads = table.rows[0].cells, time = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
    const date = new Intl.DateTimeFormat(undefined, { weekday: days ? undefined : "short", day: "numeric", month: "short" });
    [...table.tBodies[0].rows].reverse().forEach((row) => {
      const column = document.createElementNS(picture.namespaceURI, "rect"), title = document.createElementNS(picture.namespaceURI, "title");
      column.setAttribute("x", row.dataset.x);
      column.setAttribute("width", row.dataset.width);
      column.setAttribute("height", 100);
      title.textContent = [...row.cells].map((cell, at) => (at ? heads[at].textContent + ": " : "") + cell.textContent).join("\n");
      column.append(title);
      picture.append(column);
      const begin = new Date(row.querySelector("time").dateTime), hour = begin.getHours();
      const at = Math.round(Number(row.dataset.x) / Number(row.dataset.width));
      if (days ? at % 5 : few ? hour % 3 : hour) return;
      const word = document.createElement("span");
      word.textContent = (few && !days && hour ? time : date).format(begin);
      word.style.left = Number(row.dataset.x) / 10 + "%";
      axis.append(word);
    });
  }
}
writePlots(document);
