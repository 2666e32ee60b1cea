"""From a plan to a result: launch processes, time the loop, read the meters, write it down."""
