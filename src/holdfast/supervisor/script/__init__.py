"""What a policy script holds: the context, hosts, processes, futures."""
