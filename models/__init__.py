"""The models in the repository and the code that made them."""
