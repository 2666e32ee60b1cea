"""The base of every speed-up: plain training on one device."""
