"""Local SGD: ranks train alone and average their weights once a round."""
