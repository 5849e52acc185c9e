"""The recent reports of calls and executors to one replica. All of it can be lost."""
