"""How many callbacks a second the web process takes, and how long each waits."""
