// ---- the output of a job
const logBox = $("log");
if (logBox) followOutput();
async function followOutput() {
  let over = false, wait = 1;
  while (!over) {
    const stop = new AbortController();
    try {
      await listen(logBox.dataset.stream, stop.signal, (kind, data) => {
        if (kind === "lines") addLines(data.html);
        if (kind === "end") over = true;
        if (kind === "problem") { over = true; complain(data.detail); }
        wait = 1;
      });
    } catch (error) { $("log-note").textContent = "The output is not followed now: " + error.message; }
    if (over) return;
    await new Promise((go) => setTimeout(go, wait * 1000));
    wait = Math.min(10, wait * 2);
    logBox.replaceChildren();  // the stream begins anew with its last part
  }
}
function addLines(html) {
  const atEnd = logBox.scrollHeight - logBox.scrollTop - logBox.clientHeight < 40;
  const piece = document.createElement("template");
  piece.innerHTML = html;  // drawn by the server, which escapes all that a job printed
  logBox.append(piece.content);
  const many = logBox.childElementCount - MAX_LINES;
  if (many > 0 && atEnd) {
    const range = document.createRange();
    range.setStartBefore(logBox.firstChild);
    range.setEndAfter(logBox.children[many - 1]);
    range.deleteContents();
  }
  if (atEnd) logBox.scrollTop = logBox.scrollHeight;
}
