"""ParaDL's oracle: computation, communication, memory and limits of ways to cut a network."""
