"""The claims ledger: what papers claim, tested on the cells of a site."""
