"""Join the two ends of a session: its user, and the host that runs its task.

        user                        controller                          host
    client/sessions  1 WebSocket   open.py                           agent/sessions
      session.py    ─────────────▶ checks the right
                                   2 rows: session, link with a ticket
                                       3 order, by the host's sync ───▶ home.py
                                                                        4 start ▸ guardian
                                   dials.py ◀───── 5 WebSocket, ticket ─ http/dial.py
                                   6 spends the ticket, joins the two     │
      websocket.py ◀═════════════ http/sockets.py ═════════════════════▶ live.py
                        frames of wire/sessions/frames.py                 │ pipes, or a terminal
                                   dials.py ◀───── 7 end ───────────── home.py ◀ guardian

Both ends dial the controller, because neither a user's machine nor a host accepts connections. A
*link* is one such pair of WebSockets. A session may have several, one after the other, because a link
that breaks is made anew by the steps 1 to 6 without a new process.

A *ticket* is a secret that opens one thing once. A link's ticket stands in its row, goes to the
host in the order, and comes back with the dial: it proves that the dial answers this user's wish, and
names the replica where the user waits. Where the dial reaches another replica, that one passes it on
(RELAY-1). A browser's ticket is another one (`routes.py`, WEB-3): a page asks for it, and its
WebSocket brings it in the place of a token.
"""
