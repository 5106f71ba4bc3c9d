"""Deploy configuration: from files, flags and overrides to resolved stages.

Read in this order: `tree` (values that know where they came from and what they replaced), `reader` (YAML to tree), `files`
(which files), `schema` and `keys` (what may be written), `merge`, `layers` (platform, flags, `--set`, overrides on top),
`stages`, `connectors`, `devices` (one stage, one edge, its devices), `stage_checks` and `duplex` (what must fit together),
`resolve` (all of it). `provenance` and `notes` hold what is remembered and said on the way.
"""
