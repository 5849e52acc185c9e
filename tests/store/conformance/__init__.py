"""What every store must do, by port. `test_memory` and `test_postgres` run all of it, each with its own
`rig` fixture."""
