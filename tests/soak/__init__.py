"""Many users one after the other: what the processes keep of them."""
