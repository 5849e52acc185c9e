"""GraphQL over the read side of the API, at `/graphql`. An optional extra: its parts are loaded at
the first query.

endpoint: the route and its service. limits: the cost of a query, checked before anything is read.
shapes, job_shapes, roots: the schema. reads: what one query reads from the store.
"""
