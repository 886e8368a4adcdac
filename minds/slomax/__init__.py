"""SLOMax: who may enter, and when."""
