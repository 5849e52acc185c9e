"""Commands about what is built on jobs: calls of functions, workflows."""
