"""What Hutong remembers, in Redis: inbox, turns, leases, sessions, outbox, access token."""
