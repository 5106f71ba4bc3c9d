"""Deploy configuration: from files, flags and overrides to resolved stages.

Read in this order: `tree` (values that know where they came from), `reader` (YAML to tree), `files` (which files), `schema`
and `keys` (what may be written), `merge`, `layers` (platform, flags, overrides on top), `stages`, `connectors`, `devices`
(one stage, one edge, its devices), `resolve` (all of it). What is resolved can be looked at with `explain` (each value and
why), `lint`, `diff`, `freeze` (as one flat file), `memory` (what a device has to hold) and `schema_doc` (for editors and docs).
"""
