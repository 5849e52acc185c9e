"""The dashboard: pages for browsers, made on the server from what the API answers.

WEB-1  A page reads what the API answers its user, by a call inside the process, and changes nothing;
       each act is a call of the API from the page, with the browser's proof. So rights are checked
       in one place, and a page can show nothing that the API would not.
WEB-2  A cookie alone opens pages. The API takes it only with the proof, which only our pages hold.
WEB-3  A browser opens a WebSocket only from a page of ours, which its Origin names, and with a ticket
       that is good once, for one task, and given to a request with the proof.
"""
