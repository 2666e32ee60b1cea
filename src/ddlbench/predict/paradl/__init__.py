"""ParaDL's oracle: computation, communication, memory and limits of parallel strategies."""
