"""The WeCom protocol: codec, messages, replies, access token, API client, errors.

Pure: no Flask, no Celery, no store. Each module stands alone; import what you need from it.
"""
