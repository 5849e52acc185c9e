"""The routes of calls of Python functions: users submit and read them, hosts run them."""
