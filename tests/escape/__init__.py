"""Attempts to break out of the Python sandbox; ``make escape`` runs them on every back end."""
