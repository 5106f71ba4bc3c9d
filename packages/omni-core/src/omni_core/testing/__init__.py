"""Fakes and conformance suites for the tests of Omni and of plugins. Needs pytest; nothing that serves imports it."""
