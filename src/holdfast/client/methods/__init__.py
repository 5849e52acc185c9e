"""The methods of the client by their subject, each written once for both clients."""
