"""Parameter server on torch.distributed: servers, workers, and the messages between them."""
