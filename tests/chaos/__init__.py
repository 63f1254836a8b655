"""Messages through the real processes while these are killed, stopped and restarted at random."""
