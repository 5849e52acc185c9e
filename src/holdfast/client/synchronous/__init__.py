# Made from client/asynchronous/__init__.py by `python -m holdfast.client.generate`.
"""The blocking client. `holdfast.client.generate` makes it of the asyncio one."""
