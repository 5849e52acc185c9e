"""Files laid into a folder, as a manifest names them."""
