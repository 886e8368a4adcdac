"""Which engines an agent watches: a watched file with a list, DNS names and Kubernetes services."""
