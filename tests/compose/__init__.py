"""The composed stack, tried as a whole where a Docker engine runs; its files, everywhere."""
