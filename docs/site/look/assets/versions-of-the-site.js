// The selector of versions: the list stands in ../versions.js beside each version's folder, which a page
// in a folder of files can read as well as one that is served.
(() => {
  const own = document.currentScript.src.replace(/assets\/[^/]*$/, "");
  const list = document.createElement("script");
  list.src = new URL("../versions.js", own).href;
  list.onload = () => {
    const all = window.holdfastVersions || [];
    const title = document.querySelector(".md-header__title");
    if (all.length < 1 || !title) return;
    const here = decodeURIComponent(own.split("/").slice(-2)[0]);
    const select = document.createElement("select");
    select.className = "versions";
    select.setAttribute("aria-label", "Version");
    for (const version of all) select.add(new Option(version, version, false, version === here));
    select.onchange = () => {
      const rest = location.href.slice(own.length);
      location.href = new URL(`../${select.value}/`, own).href + (rest || "index.html");
    };
    title.after(select);
  };
  document.head.append(list);
})();
