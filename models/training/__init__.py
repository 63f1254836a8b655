"""How the shipped models are made: templates, dialogs, tokenizer, training, evaluation."""
