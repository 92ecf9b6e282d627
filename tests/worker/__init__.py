"""Tests of the engine, the reconcilers and the collectors."""
