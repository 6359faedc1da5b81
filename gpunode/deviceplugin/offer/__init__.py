"""What is offered of the GPUs: by which resources and units, what is preferred, what is held back."""
