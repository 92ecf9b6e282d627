"""Tests of the API: rights, shapes, refusals."""
