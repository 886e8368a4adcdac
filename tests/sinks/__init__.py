"""Tests of sinks/."""
