// ---- plots: what a column stands for, and the words of the time's axis, which are of the viewer's zone. The table has both
function writePlots(root) {
  for (const plot of root.querySelectorAll(".plot")) {
    const axis = plot.querySelector(".times"), count = Number(plot.dataset.count), few = count <= 24, days = plot.dataset.step === "day";
    const picture = plot.querySelector("svg"), table = plot.parentNode.querySelector("table");
    const heads = table.rows[0].cells, time = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
    const date = new Intl.DateTimeFormat(undefined, { weekday: days ? undefined : "short", day: "numeric", month: days ? "short" : undefined });
    [...table.tBodies[0].rows].reverse().forEach((row) => {
      const column = document.createElementNS(picture.namespaceURI, "rect"), title = document.createElementNS(picture.namespaceURI, "title");
      column.setAttribute("x", row.dataset.x);
      column.setAttribute("width", row.dataset.width);
      column.setAttribute("height", 100);
      title.textContent = [...row.cells].map((cell, at) => (at ? heads[at].textContent + ": " : "") + cell.textContent).join("\n");
      column.append(title);
      picture.append(column);
    });
    for (let n = 0, at; n < count; n += 1) {
      at = new Date(Date.parse(plot.dataset.begin) + n * (days ? 864e5 : 36e5));
      const hour = at.getHours();
      if ((days ? n % 5 : few ? hour % 3 : hour) || n > 0.94 * count) continue;
      const word = document.createElement("span");
      word.textContent = (few && !days && hour ? time : date).format(at);
      word.style.left = n / count * 100 + "%";
      axis.append(word);
    }
  }
}
writePlots(document);
