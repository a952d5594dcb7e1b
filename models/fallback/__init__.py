"""Any other causal language model of Transformers behind the backend interface: its own modules, over our pages."""
