"""A local WeCom: the API an app calls, the caller of its callback, and a chat page.

Owns everything a self-built app sees of the service. Knows nothing of Hutong: it shares no code
with ``app.wecom`` or wechatpy, so that each side checks the other. See README.md beside this file.
"""
