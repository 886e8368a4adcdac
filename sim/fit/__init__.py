"""The step model against measured engines: reading published profiles, predicting them, refitting."""
