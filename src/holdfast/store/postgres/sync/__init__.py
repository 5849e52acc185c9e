"""What a host's sync writes beside its jobs: heartbeats and renewals of leases, the lapses where none
came, and a second look for missing rows."""
