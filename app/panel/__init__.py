"""The admin page under ``/admin``: what the gateway does, for a person in a browser.

| module | owns |
|---|---|
| session | the signed cookie of a session and the token of its forms |
| door | who may see a page: signing in and out, the headers of every answer |
| panel | what the pages need, put together |
| pages | the tabs: reading only |
| actions | what a button does |
| self_check | the self-check in the background |
| engine_view | the facts of a model process, as the engine tab shows them |
| formats | numbers and times for people |

Rendered on the server; nothing comes from elsewhere. Message text is shown to the administrator
and never logged. Knows nothing of how turns are answered or parts are sent.
"""
