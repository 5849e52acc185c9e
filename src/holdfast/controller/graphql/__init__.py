"""GraphQL over the read side of the API, at `/graphql`. An optional extra: nothing here is loaded
before the first query.

endpoint: the route, and the service behind it. limits: what a query may cost, decided before
anything is read.
shapes, roots: the schema. reads: what one query reads from the store, a call for each kind.
"""
