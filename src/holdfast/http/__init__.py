"""The HTTP client of the SDK, of the command line and of agents: connections, TLS, proxies, and the
change from a controller that is away to the next one."""
