"""What the store and its model must do, by part. `test_memory` and `test_postgres` run all of it, each with its own
`rig` fixture."""
