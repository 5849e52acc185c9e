"""The operations of the REST API, a file for each thing, and what a person may do with them (`acts`).

An operation is declared here once, below all faces. The controller binds a handler to it, the client
calls it, an act of a page and a command of the command line take its consequence from it, and
OpenAPI and the reference pages are made from it.
"""
