"""HTTP below the routes: bodies, queries, pages, problems, streams."""
