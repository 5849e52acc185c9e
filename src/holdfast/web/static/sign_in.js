// The link's secret stands in the fragment, which no server and no log sees. It leaves the address before it is used.
const secret = location.hash.slice(1);
const said = document.getElementById("said");
if (secret) {
  history.replaceState(null, "", "/sign-in");
  fetch("/sign-in", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ link: secret }) })
    .then(async (answer) => {
      const body = await answer.json();
      if (!answer.ok) throw new Error(body.detail);
      localStorage.setItem("holdfast-proof", body.proof);
      const after = sessionStorage.getItem("after") || "/";
      sessionStorage.clear();
      location.replace(after);
    })
    .catch((error) => { said.textContent = "This browser was not signed in: " + error.message; });
}
