"""What no policy can beat: bounds on latency and on goodput, from things that a router can't know."""
