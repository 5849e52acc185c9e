"""The parts of the client's job methods: jobs' fields, the words that name jobs, the waits for
their ends."""
