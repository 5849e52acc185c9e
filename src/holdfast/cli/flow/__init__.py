"""Commands about what is built on jobs: workflows, tasks."""
