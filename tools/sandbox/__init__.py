"""Back ends that run the model's Python without trusting it: ``monty`` and ``native``.

Both implement ``tools.sandbox.base.Backend``. Knows nothing of tables' origin, rights or models.
Imports nothing here: the zygote loads single modules of this package.
"""
