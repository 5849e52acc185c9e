// A link from mail or chat comes without the cookie, because it begins at another site. This page comes from our own
// origin, so that reading it once more brings the cookie along.
if (sessionStorage.getItem("again") === location.href) {
  sessionStorage.removeItem("again");
  sessionStorage.setItem("after", location.pathname + location.search);
  location.replace("/sign-in");
} else {
  sessionStorage.setItem("again", location.href);
  location.reload();
}
