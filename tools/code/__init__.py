"""Code mode: programs that a model wrote, run in a sandbox, with tools as functions.

The interpreter is an optional package (`guildry[code]`); modules that need it are imported only
where a program runs.
"""
