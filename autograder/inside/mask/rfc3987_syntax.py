"""Stands before the real package on the sandbox's path: that one compiles grammars for 2.6 s whenever nbformat is imported, and
jsonschema does without it."""

raise ImportError("left out in the sandbox: it costs seconds and nothing here needs it")
