"""Models, flat vectors, local training, client memory, the round loop."""
