"""The asyncio client. The blocking one is made from it by `holdfast.client.generate`."""
